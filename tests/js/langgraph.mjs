// The client of @langchain/langgraph-sdk, driven by its standard input:
//
//     node langgraph.mjs URL TOKEN
//     ["threads", "create", {}]        one call a line: of what, which, its arguments
//
// Each line of its output is {"part": …} of a stream, or what the call has come to: {"result": …}
// or {"error": …, "status": …}. One call after the other.

import { createInterface } from "node:readline";

import { Client } from "@langchain/langgraph-sdk";

const [url, token] = process.argv.slice(2);
const client = new Client({
  apiUrl: `${url}/api/lg`,
  apiKey: null,
  defaultHeaders: { Authorization: `Bearer ${token}` },
});

const print = (seen) => process.stdout.write(`${JSON.stringify(seen)}\n`);

async function make([of, which, ...given]) {
  const made = client[of][which](...given);
  if (!(Symbol.asyncIterator in made)) {
    return (await made) ?? null;
  }
  for await (const part of made) {
    print({ part });
  }
  return null;
}

for await (const line of createInterface({ input: process.stdin })) {
  try {
    print({ result: await make(JSON.parse(line)) });
  } catch (error) {
    print({ error: String(error), status: error.status ?? null });
  }
}
