"""How does one scheduler serve many gateway processes, and none lose a request when a part of it dies?

Everything here is pure: bytes, events and the time come in, bytes and orders go out. Who carries them is not said here.
`docs/project/cell-protocol.md` has the protocol as a whole.
"""
