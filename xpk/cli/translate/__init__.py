"""Command lines of gcluster and of Google's xpk as command lines of this xpk."""
