"""The user's code: an archive named by its content, and its way to the hosts."""
