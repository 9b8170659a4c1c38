// openai-node: Responses and Realtime over WebSocket, chat over HTTP: node openai_node.mjs BASE_URL
import OpenAI from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";

const client = new OpenAI({ apiKey: "sk-any", baseURL: process.argv[2] });
const seen = { errors: [] };
const ws = new ResponsesWS(client);
ws.on("error", (error) => seen.errors.push(error.error?.code ?? error.message));

function respond(fields) {
  return new Promise((resolve) => {
    const got = { text: "", lanes: [] };
    const take = (event) => {
      if (event.type === "response.output_text.delta") got.text += event.delta;
      got.lanes.push(event.stream_id ?? null);
      if (["response.completed", "response.incomplete", "response.failed", "error"].includes(event.type)) {
        ws.off("event", take);
        resolve({ ...got, id: event.response?.id, type: event.type, code: event.error?.code });
      }
    };
    ws.on("event", take);
    ws.send({ type: "response.create", model: "tiny", input: "hi", max_output_tokens: 5, ...fields });
  });
}

await new Promise((resolve) => (ws.socket.readyState === 1 ? resolve() : ws.socket.on("open", resolve)));
seen.first = await respond({});
seen.lane = await respond({ stream_id: "a", previous_response_id: seen.first.id });
seen.unknown = await respond({ previous_response_id: "resp_nope" });
ws.close();

const stream = await client.chat.completions.create({
  model: "tiny", messages: [{ role: "user", content: "hi" }], max_tokens: 5, stream: true,
});
seen.chat = "";
for await (const chunk of stream) seen.chat += chunk.choices[0]?.delta?.content ?? "";
console.log(JSON.stringify(seen));
