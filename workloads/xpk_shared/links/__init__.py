"""Links between the hosts of a job: every host keeps one TCP connection to process 0, the hub.

The kernel closes the connection of a process that dies, so a death is detected within milliseconds, even while the main
thread is blocked in a collective that never ends. Messages are JSON, one per line:

    challenge, hello, welcome    the handshake (handshake.py); other messages are invalid before it
    lost   hub -> hosts  {"lost": number}
    tell   any -> all    {"tell": what, "by": number}
    ready  hub -> hosts  every host has connected once
    beat   both ways, if enabled: a host that hangs keeps its connection but sends nothing
    bye    both ways: the end of this connection is not a death

A host that connects late receives the messages that were sent to all others, in that order. A connection with an
invalid message is closed. Callers define other messages. The modules also run in users' images, so they use only the
standard library of Python 3.8.
"""
