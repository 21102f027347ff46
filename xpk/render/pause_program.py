"""A program that only waits, small enough for a ConfigMap; it runs in any image, even an empty one.

Containers that only have their image pulled run it: nothing in the image is started, so images without a shell, or
with nothing to execute at all, work as well.
"""

from __future__ import annotations

import struct

# The processor's number in ELF's header, and the program: ask the kernel to wait for a signal, again and again.
_PROGRAMS = {
    # push 34 (pause); pop rax; syscall; jmp to the beginning
    "amd64": (62, bytes.fromhex("6a22" "58" "0f05" "ebf9")),
    # mov x0..x3, 0; mov x8, 73 (ppoll); svc 0; b to the beginning
    "arm64": (183, struct.pack("<7I", *(0xD2800000 + n for n in range(4)), 0xD2800928, 0xD4000001, 0x17FFFFFA)),
}  # fmt: skip
ARCHITECTURES = tuple(_PROGRAMS)
_ADDRESS, _EXECUTABLE, _CURRENT, _LOAD, _READ_AND_EXECUTE, _PAGE = 0x400000, 2, 1, 1, 5, 0x10000
_HEADER, _SEGMENT = struct.Struct("<4s4B8x2HI3QI6H"), struct.Struct("<2I6Q")


def hold_program(architecture: str) -> bytes:
    """Return an executable for Linux (ELF, 64 bits, static) that waits until it is killed.

    The layout is that of https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.eheader.html: a header, one segment that
    is the whole file, and the code. Raises KeyError for an architecture that is not in `ARCHITECTURES`.
    """
    machine, code = _PROGRAMS[architecture]
    start = _HEADER.size + _SEGMENT.size
    header = _HEADER.pack(
        b"\x7fELF", 2, 1, _CURRENT, 0, _EXECUTABLE, machine, _CURRENT, _ADDRESS + start, _HEADER.size, 0, 0,
        _HEADER.size, _SEGMENT.size, 1, 0, 0, 0,
    )  # fmt: skip
    size = start + len(code)
    return header + _SEGMENT.pack(_LOAD, _READ_AND_EXECUTE, 0, _ADDRESS, _ADDRESS, size, size, _PAGE) + code
