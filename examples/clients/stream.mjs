// Stream text from a running server with Node 22 or later, which has WebSocket built in: node stream.mjs [URL]
const ws = new WebSocket(process.argv[2] ?? "ws://127.0.0.1:8000/v1/stream", ["llm.v1"]);
ws.onopen = () => ws.send(JSON.stringify({ type: "generate", id: "1", prompt: "The capital of France is", max_tokens: 16 }));
ws.onmessage = ({ data }) => {
  const frame = JSON.parse(data);
  if (frame.type === "delta") process.stdout.write(frame.text);
  else if (frame.type === "done" || frame.type === "error") ws.close();
};
ws.onclose = () => process.stdout.write("\n");
ws.onerror = () => { console.error("cannot connect"); process.exitCode = 1; };
