// Takes locks of node-redlock: `node_redlock.mjs HOST:PORT TTL_MS`, then commands on standard input,
// answers on standard output, as the other takers.
import { readFile, writeFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import Redis from "ioredis";
import Redlock, { ExecutionError } from "redlock";

const [address, ttl] = [process.argv[2], Number(process.argv[3])];
const [host, port] = address.split(":");
const library = new Redlock([new Redis({ host, port: Number(port) })]);
library.on("error", () => {});

const forever = { retryCount: -1, retryDelay: 10, retryJitter: 5 };
let held = null;

async function take(name, settings) {
  try {
    held = await library.acquire([name], ttl, settings);
    return "granted";
  } catch (error) {
    if (error instanceof ExecutionError) return "busy";
    throw error;
  }
}

async function change(action, done) {
  try {
    held = (await action()) ?? held;
    return done;
  } catch (error) {
    return `refused ${error.name}`;
  }
}

const commands = {
  take: (name) => take(name, forever),
  try: (name) => take(name, { retryCount: 0 }),
  release: () => change(() => held.release().then(() => null), "released"),
  extend: () => change(() => held.extend(ttl), "extended"),
  async sign(name, path, times, mark) {
    for (let i = 0; i < Number(times); i += 1) {
      const lock = await library.acquire([name], ttl, forever);
      await writeFile(path, (await readFile(path, "utf8")) + mark);
      await lock.release();
      // Time for the others: this library has no line.
      await sleep(2);
    }
    return "signed";
  },
};

console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  const [command, ...words] = line.split(" ");
  console.log(await commands[command](...words));
}
process.exit(0);
