"""websocket-client: python websocket_client.py URL"""

import json
import sys

import websocket

ws = websocket.create_connection(sys.argv[1])
ws.send(json.dumps({"type": "generate", "id": "1", "prompt": "Hi", "max_tokens": 5}))
text = ""
while (frame := json.loads(ws.recv()))["type"] not in ("done", "error"):
    text += frame["text"] if frame["type"] == "delta" else ""
ws.close()
print(json.dumps({"text": text}))
