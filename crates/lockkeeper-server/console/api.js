// Requests to the service. The token is kept in memory and in this tab's session storage, never in a cookie, and
// travels in the Authorization header only. Events are read by fetch, because EventSource cannot send that header.

const BASE = new URL("../", import.meta.url);
const KEY = "lockkeeper-token";
const PATIENCE = 20_000;
/** The service sends a comment every 15 s; a stream that is silent for longer than this is dead. */
const SILENCE = 40_000;

let token = "";
try {
  token = sessionStorage.getItem(KEY) || "";
} catch {
  // Storage is blocked: the token lives in memory only.
}

export const hasToken = () => token !== "";

export function useToken(text) {
  token = text.trim();
  try {
    if (token) sessionStorage.setItem(KEY, token);
    else sessionStorage.removeItem(KEY);
  } catch {
    // As above.
  }
}

/** An answer that is no success (`status`, `kind`, `detail` of its problem document), or no answer (`status` 0). */
export class Failure extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `status ${status}`);
    this.status = status;
    this.kind = problem.kind || "";
    this.retryAfter = problem.retryAfter || 0;
  }
}

/** What the page's clock shows when the service's clock shows `at`, judged by the Date header of its answers. */
let skew = 0;
export const localTime = (text) => Date.parse(text) + skew;

function noteClock(response) {
  const theirs = Date.parse(response.headers.get("date") || "") + 500;
  const ahead = Date.now() - theirs;
  skew = Math.abs(ahead) > 1500 ? ahead : 0;
}

export async function request(path, { method = "GET", body, headers = {}, signal, patience = PATIENCE } = {}) {
  const late = AbortSignal.timeout(patience);
  const all = { ...headers };
  if (token) all.authorization = `Bearer ${token}`;
  if (body !== undefined) all["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(new URL(path, BASE), {
      method,
      body,
      headers: all,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      signal: signal ? AbortSignal.any([signal, late]) : late,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Failure(0, { kind: "no_answer", detail: error.message });
  }
  noteClock(response);
  if (response.ok || response.status === 304) return response;
  throw new Failure(response.status, await problemOf(response));
}

async function problemOf(response) {
  const retryAfter = Number(response.headers.get("retry-after")) * 1e3;
  try {
    return { ...(await response.json()), retryAfter };
  } catch {
    return { retryAfter };
  }
}

const json = async (path, options) => {
  try {
    return await (await request(path, options)).json();
  } catch (error) {
    if (error instanceof Failure || options?.signal?.aborted) throw error;
    throw new Failure(0, { kind: "no_answer", detail: error.message });
  }
};

const segment = encodeURIComponent;

export const api = {
  /** One page of lines: {locks, next}. */
  page: (after, limit, signal) => json(`v1/locks?limit=${limit}` + (after === null ? "" : `&after=${segment(after)}`), { signal }),
  /** One line; with `change`, the answer comes when the line is another one, or after `wait` at the latest. */
  line: (name, change, wait, signal) => {
    const query = change ? `?wait_change=${segment(change)}&wait_ms=${wait}` : "";
    return json(`v1/locks/${segment(name)}${query}`, { signal, patience: wait + PATIENCE });
  },
  store: (signal) => json("v1/store", { signal }),
  /** What has happened to one lock, oldest first, as far as the service remembers. */
  history: (name, signal) => json(`v1/locks/${segment(name)}/history`, { signal }),
  /** The fence goes into the body as text, because it may be beyond what a number of JavaScript holds. */
  evict: (name, ticket, fence) => {
    const body = `{"ticket":${JSON.stringify(ticket)}${/^\d+$/.test(fence || "") ? `,"fence":${fence}` : ""}}`;
    return json(`v1/locks/${segment(name)}/evict`, { method: "POST", body });
  },
  /** A cell's bytes with what its headers tell, or null if nothing was written. */
  async cell(name, signal) {
    try {
      const response = await request(`v1/cells/${segment(name)}`, { signal });
      const bytes = new Uint8Array(await response.arrayBuffer());
      return { bytes, tag: response.headers.get("etag") || "", fence: response.headers.get("lockkeeper-fence") || "" };
    } catch (error) {
      if (error.status === 404) return null;
      throw error;
    }
  },
};

export const pause = (ms, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });

/** Splits a stream of server-sent events; gives each as {type, id, data}, and calls `alive` for every piece. */
export function sseParser(give) {
  let rest = "";
  let message = { type: "message", data: [] };
  let id = "";
  const line = (text) => {
    if (text === "") {
      if (message.data.length) give({ type: message.type, id, data: message.data.join("\n") });
      message = { type: "message", data: [] };
      return;
    }
    const colon = text.indexOf(":");
    if (colon === 0) return;
    const field = colon < 0 ? text : text.slice(0, colon);
    const value = colon < 0 ? "" : text.slice(colon + 1).replace(/^ /, "");
    if (field === "event") message.type = value;
    else if (field === "data") message.data.push(value);
    else if (field === "id" && !value.includes("\0")) id = value;
  };
  return (text) => {
    const lines = (rest + text).split(/\r\n|\n|\r/);
    rest = lines.pop();
    lines.forEach(line);
  };
}

/**
 * Follows a stream of events until `signal` ends it: resumes by Last-Event-ID, reconnects with a growing pause.
 * `open` is told at every connection, `give` every event, `failed` every failure.
 */
export async function follow(path, { give, open, failed, signal }) {
  let last = "";
  let tries = 0;
  while (!signal.aborted) {
    const cut = new AbortController();
    const watch = { timer: 0 };
    const stop = () => cut.abort();
    const alive = () => {
      clearTimeout(watch.timer);
      watch.timer = setTimeout(stop, SILENCE);
    };
    signal.addEventListener("abort", stop, { once: true });
    let wait = 0;
    try {
      alive();
      const headers = { accept: "text/event-stream", ...(last ? { "last-event-id": last } : {}) };
      const response = await request(path, { headers, signal: cut.signal, patience: 2 ** 31 - 1 });
      tries = 0;
      open();
      const feed = sseParser((event) => {
        if (event.id) last = event.id;
        give(event);
      });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        alive();
        feed(value);
      }
      throw new Failure(0, { kind: "ended", detail: "the service ended the stream" });
    } catch (error) {
      if (signal.aborted) break;
      wait = error.retryAfter || 0;
      if (error.status === 410) last = "";
      failed(error);
    } finally {
      clearTimeout(watch.timer);
      signal.removeEventListener("abort", stop);
      cut.abort();
    }
    tries++;
    await pause(Math.max(wait, Math.min(3000, 250 * 2 ** tries) * (0.75 + Math.random() / 2)), signal);
  }
}
