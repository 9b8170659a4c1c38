"""An open-loop load generator for text over WebSocket, and for any OpenAI-compatible server over HTTP."""
