"""Links between the hosts of a job: every host keeps one TCP connection to process 0, the hub.

The kernel closes the connection of a process that dies, so a death is known within milliseconds, also while the main
thread is stuck in a collective that will never end. Messages are JSON, one per line:

    challenge, hello, welcome    the handshake (handshake.py); nothing else counts before it
    lost   hub -> hosts  {"lost": number}
    tell   any -> all    {"tell": what, "by": number}
    ready  hub -> hosts  every host has connected once
    beat   both ways, if wanted: a host that hangs keeps its connection but falls silent
    bye    both ways: the end of this connection is not a death

A host that connects late is sent what all others were sent, in that order. A connection with an invalid message is
closed. Other messages are the callers' own. The modules also run in users' images: standard library, Python 3.8.
"""
