#!/bin/sh
# Gives each copy of server.py a port and a seed of its own: tms restore DIR -n 4 --hook ./hook.sh
set -e
port=$((${FIRST_PORT:-8001} + TMS_RESTORE_COPY))
seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
# The copy's own /dev/shm, as this script sees it:
echo "{\"port\": $port, \"seed\": $seed}" >"/proc/$TMS_RESTORE_PID/root/dev/shm/server.json"
kill -HUP "$TMS_RESTORE_PID"
