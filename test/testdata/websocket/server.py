# SPDX-License-Identifier: Apache-2.0
"""A server of Python's websockets: server.py PORT. It echoes, closes with the code that
it is told, and prints the codes with which clients have closed."""
import asyncio
import sys

import websockets


async def serve(s, _path=None):
    try:
        async for data in s:
            if isinstance(data, str) and data.startswith("close "):
                await s.close(int(data[6:]), "asked")
            elif data == "fragments":
                await s.send(["four ", "five ", "six"])
            else:
                await s.send(data)
    except websockets.ConnectionClosed:
        pass
    finally:
        await s.wait_closed()
        print(f"closed {s.close_code}", flush=True)


async def main():
    async with websockets.serve(serve, "127.0.0.1", int(sys.argv[1]), max_size=1 << 26, ping_interval=None):
        await asyncio.Future()


asyncio.run(main())
