"""Has a socket as NVIDIA's driver makes one in each process, and then is the program that the arguments name."""

import os
import runpy
import socket
import sys

listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(f"\0cuda-uvmfd-{os.stat('/proc/self/ns/pid').st_ino}-{os.getpid()}\0")
listener.listen()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
