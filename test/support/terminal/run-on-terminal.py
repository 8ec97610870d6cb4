"""Runs a program on a pseudo-terminal of a given size: `run-on-terminal.py COLUMNS ROWS PROGRAM [ARGUMENT...]`.

What is written to standard input is typed on the terminal, so "\\x03" is Ctrl-C; what the terminal shows goes to standard
output. Ends with the exit code of the program, or 128 and the number of the signal that ended it. SIGTERM kills the
program.
"""

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios

columns, rows, *program = sys.argv[1:]
pid, terminal = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", int(rows), int(columns), 0, 0))
    os.execvp(program[0], program)

signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGKILL))
sources = [terminal, 0]
while terminal in sources:
    for source in select.select(sources, [], [])[0]:
        try:
            data = os.read(source, 65536)
        except OSError:  # Linux: the program has closed the terminal.
            data = b""
        if data:
            os.write(terminal if source == 0 else 1, data)
        else:
            sources.remove(source)

code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
sys.exit(code if code >= 0 else 128 - code)
