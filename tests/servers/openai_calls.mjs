// Calls of OpenAI's client for Node.js: `openai_calls.mjs PACKAGES DIRECT PROXY MODEL LIMIT`. Embeddings in the client's default form, completions, and streams of
// completions. Two callers send a text that the server refuses with 400, because it has more than LIMIT characters. Prints one line of JSON.
import {readFileSync} from "node:fs";
import {createRequire} from "node:module";
import process from "node:process";

process.stdin.resume().on("end", () => process.exit());
const [packages, direct, proxy, model, limit] = process.argv.slice(2);
const load = createRequire(`${packages}/`);
const {OpenAI, APIError} = load("openai");
const CALLERS = 24, TOKENS = 6;

const sends = [
  async (client, text) => (await client.embeddings.create({model, input: text})).data.map((item) => item.embedding),
  async (client, text) => (await client.completions.create({model, prompt: text, max_tokens: TOKENS, temperature: 0})).choices.map((choice) => choice.text),
  async (client, text) => {
    let out = "";
    for await (const chunk of await client.completions.create({model, prompt: text, max_tokens: TOKENS, temperature: 0, stream: true}))
      for (const choice of chunk.choices) out += choice.text;
    return out;
  },
];
const calls = [];
for (let at = 0; at < CALLERS; at++)
  sends.forEach((send, turn) => {
    const mark = `parcel ${at}.${turn}.`;
    const bad = (at === 3 && turn === 0) || (at === 17 && turn === 1);
    calls.push({at, send, mark, text: bad ? mark + "x".repeat(Number(limit)) : `${"word ".repeat((7 * at) % 5)}${mark}${String.fromCharCode(97 + at)}`, status: bad ? 400 : 200});
  });

async function answer(client, call) {
  try {
    return {status: 200, value: JSON.stringify(await call.send(client, call.text))};
  } catch (error) {
    if (!(error instanceof APIError) || !error.status) throw error;
    return {status: error.status, value: JSON.stringify(error.error)};
  }
}

// No retries: they would hide failures.
const client = (url) => new OpenAI({baseURL: `${url}/v1`, apiKey: "sk-test", maxRetries: 0, timeout: 60000});

async function together(url) {
  const answers = new Map(), began = performance.now();
  await Promise.all(Array.from({length: CALLERS}, async (_, at) => {
    const own = client(url);
    for (const call of calls.filter((call) => call.at === at)) answers.set(call, await answer(own, call));
  }));
  return [answers, (performance.now() - began) / 1000];
}

const expected = new Map(), faults = [], one = client(direct);
for (const call of calls) expected.set(call, await answer(one, call));
const [, directSeconds] = await together(direct);
const [actual, proxySeconds] = await together(proxy);
let equal = 0;
for (const call of calls) {
  const mine = expected.get(call), theirs = actual.get(call);
  if (mine.status !== call.status) faults.push(`${call.mark}: the server answers ${mine.status}, expected ${call.status}: ${mine.value.slice(0, 200)}`);
  if (mine.status === theirs.status && mine.value === theirs.value) equal++;
  else faults.push(`${call.mark}: ${mine.status} ${mine.value.slice(0, 200)} and ${theirs.status} ${theirs.value.slice(0, 200)}`);
  for (const other of calls) if (other !== call && theirs.value.includes(other.mark)) faults.push(`${call.mark}: the answer contains ${other.mark}`);
}
console.log(JSON.stringify({
  client: `openai ${JSON.parse(readFileSync(`${packages}/node_modules/openai/package.json`)).version} on Node.js ${process.versions.node}`, calls: calls.length, equal,
  refused: calls.filter((call) => call.status !== 200).length, unlike: new Set([...expected.values()].map((it) => it.value)).size,
  direct_seconds: Number(directSeconds.toFixed(3)), proxy_seconds: Number(proxySeconds.toFixed(3)), faults,
}));
process.exit();
