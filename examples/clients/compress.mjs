import { readFileSync } from "node:fs";
import { credentials, loadPackageDefinition } from "@grpc/grpc-js";
import { loadFileDescriptorSetFromBuffer } from "@grpc/proto-loader";

const [address, protoset] = process.argv.slice(2);
const definition = loadFileDescriptorSetFromBuffer(readFileSync(protoset), { keepCase: true });
const { inference } = loadPackageDefinition(definition);
const client = new inference.GRPCInferenceService(address, credentials.createInsecure(), {
  "grpc.max_receive_message_length": -1,
  "grpc.service_config": JSON.stringify({ loadBalancingConfig: [{ round_robin: {} }] }),
});

// A BYTES tensor: each string behind its length in four bytes, little-endian.
const pack = (strings) =>
  Buffer.concat(
    strings.flatMap((text) => {
      const bytes = Buffer.from(text, "utf8");
      const length = Buffer.alloc(4);
      length.writeUInt32LE(bytes.length);
      return [length, bytes];
    }),
  );
function* unpack(buffer) {
  for (let at = 0; at < buffer.length; ) {
    const end = at + 4 + buffer.readUInt32LE(at);
    yield buffer.toString("utf8", at + 4, end);
    at = end;
  }
}

function compress(query, items, seconds) {
  const request = {
    model_name: "compress",
    inputs: [
      { name: "QUERY", datatype: "BYTES", shape: [1] },
      { name: "ITEMS", datatype: "BYTES", shape: [items.length] },
    ],
    outputs: [{ name: "EVIDENCE" }],
    raw_input_contents: [pack([query]), pack(items.map((item) => JSON.stringify(item)))],
    // The server's own limit in microseconds: what nobody waits for any more is left out. A map is an array of entries.
    parameters: [{ key: "timeout", value: { int64_param: seconds * 1e6 } }],
  };
  return new Promise((resolve, reject) =>
    client.ModelInfer(request, { deadline: Date.now() + seconds * 1000 }, (error, reply) => {
      if (error) reject(error); // error.code 14 (UNAVAILABLE): send again after a pause
      else resolve([...unpack(reply.raw_output_contents[0])].map((text) => JSON.parse(text)));
    }),
  );
}

const items = [
  { id: "lid", modality: "text", title: "Kiln", text: "The lid is heavy. Fire it at noon. Let it cool." },
  { id: "glaze", modality: "table", columns: ["glaze", "cone"], rows: [["celadon", "9"], ["shino", "10"]] },
];
for (const evidence of await compress("When is the kiln fired?", items, 30)) {
  console.log(evidence.item_id, JSON.stringify(evidence.text), evidence.tokens_in, evidence.tokens_kept);
}
client.close();
