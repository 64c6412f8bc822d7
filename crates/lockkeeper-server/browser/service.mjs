// A real `lockkeeper serve` on a store of its own, and clients that use it over HTTP as curl would.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const COMMAND = process.env.LOCKKEEPER || "target/debug/lockkeeper";
const PATIENCE = 30_000;

/** Waits until `met` gives something true; the condition is asked for again and again. */
export async function until(what, met, patience = PATIENCE) {
  const end = Date.now() + patience;
  for (;;) {
    const value = await met();
    if (value) return value;
    if (Date.now() > end) throw new Error(`not within ${patience / 1000} s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

export class Service {
  constructor() {
    this.folder = mkdtempSync(join(tmpdir(), "lockkeeper-console-"));
    this.listen = "127.0.0.1:0";
  }

  async start() {
    const store = `sqlite:${join(this.folder, "locks.db")}`;
    this.output = "";
    this.child = spawn(COMMAND, ["--store", store, "serve", "--listen", this.listen], { stdio: ["ignore", "pipe", "pipe"] });
    this.ended = new Promise((resolve) => this.child.once("exit", resolve));
    for (const stream of [this.child.stdout, this.child.stderr]) stream.on("data", (text) => (this.output += text));
    this.url = await until(`the address in what the service says:\n${this.output}`, () => {
      if (this.child.exitCode !== null) throw new Error(`the service has ended:\n${this.output}`);
      return this.output.match(/http:\/\/127\.0\.0\.1:\d+/)?.[0];
    });
    this.listen = this.url.slice("http://".length);
    await until("the service is ready", () => fetch(`${this.url}/readyz`).then((answer) => answer.ok, () => false));
  }

  async stop(signal = "SIGTERM") {
    this.child.kill(signal);
    await this.ended;
  }

  async end() {
    if (this.child.exitCode === null && this.child.signalCode === null) await this.stop("SIGKILL");
    rmSync(this.folder, { recursive: true, force: true });
  }

  async ask(method, path, body, headers = {}) {
    const answer = await fetch(this.url + path, {
      method,
      headers: body === undefined ? headers : { "content-type": "application/json", ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text}`);
    return text ? JSON.parse(text) : null;
  }

  /** Opens a session of a program; its TTL is long, so that the tests need not renew it. */
  async session(program, host = "runner-1", ttl_ms = 600_000, pid = 4000 + Math.floor(Math.random() * 20_000)) {
    const { session, secret } = await this.ask("POST", "/v1/sessions", { ttl_ms, owner: { host, pid, program } });
    return new Session(this, session, secret);
  }
}

export class Session {
  constructor(service, id, secret) {
    Object.assign(this, { service, id, headers: { "lockkeeper-session": id, "lockkeeper-secret": secret } });
  }

  /** Asks for a lock without waiting: the ticket is granted or stands in line. */
  async queue(lock, more = {}) {
    const body = { manner: "queue", wait_ms: 0, ...more };
    const taken = await this.service.ask("POST", `/v1/locks/${encodeURIComponent(lock)}`, body, this.headers);
    return { lock, ticket: taken.ticket, fence: taken.fence_text, held: taken.held, sequencer: taken.sequencer };
  }

  release({ lock, ticket }) {
    return this.service.ask("DELETE", `/v1/locks/${encodeURIComponent(lock)}/tickets/${ticket}`, undefined, this.headers);
  }

  renew() {
    return this.service.ask("POST", `/v1/sessions/${this.id}/renew`, { tickets: false }, this.headers);
  }

  close() {
    return this.service.ask("DELETE", `/v1/sessions/${this.id}`, undefined, this.headers);
  }
}

/** Runs `work` over all items, so many at once. */
export async function together(items, most, work) {
  const rest = [...items];
  const worker = async () => {
    while (rest.length) await work(rest.shift());
  };
  await Promise.all(Array.from({ length: most }, worker));
}
