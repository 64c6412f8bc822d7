// Keeps the model fed: a pass over the listing every few seconds (renewals are no events, so remaining times come from
// there), the stream of events in between, the store's own report, and one line closely while its page is open.

import { Failure, api, follow, pause } from "./api.js";
import { dropUnseen, model, takeEvent, takeHistory, takeLine } from "./state.js";

const PAGE = 1000;
const PASS = 2_000;
const PASS_HIDDEN = 15_000;
const STALE = 20_000;
const STORE = 5_000;
/** A renewal is no change of a line, so remaining times are asked for so often at least. */
const LOOK = 2_000;

const on = { change: () => {}, token: () => {} };
let lastGood = Date.now();
let poke = () => {};
let running = null;
let failures = 0;

export function start(listeners) {
  Object.assign(on, listeners);
  restart();
}

/** Begins anew, for example with another token. */
export function restart() {
  running?.abort();
  running = new AbortController();
  failures = 0;
  model.opened = Date.now();
  if (model.conn === "token") setConn("connecting");
  const { signal } = running;
  listing(signal);
  events(signal);
  store(signal);
}

/** The impatient user's button: ask at once. */
export const tryNow = () => poke();

function setConn(conn) {
  if (model.conn === conn) return;
  model.conn = conn;
  model.since = lastGood;
  on.change(true);
}

function good() {
  lastGood = Date.now();
  failures = 0;
  setConn("live");
}

function bad(error) {
  failures++;
  if (error.status === 401) {
    running.abort();
    setConn("token");
    on.token(error);
  } else if (error.status === 503 && error.kind === "unavailable") setConn("store");
  else if (!(error instanceof Failure) || error.status === 0 || error.status >= 500) {
    if (model.conn !== "stale") setConn(Date.now() - lastGood > STALE ? "stale" : "reconnecting");
  }
}

/** Once a second: a connection that has been lost for long makes the page stale. */
export function age() {
  if (model.conn === "reconnecting" && Date.now() - lastGood > STALE) setConn("stale");
}

async function rest(ms, signal) {
  const wake = new AbortController();
  poke = () => wake.abort();
  await pause(ms, AbortSignal.any([signal, wake.signal]));
}

async function listing(signal) {
  while (!signal.aborted) {
    try {
      await pass(signal);
      const least = model.eventsFlow ? PASS : PASS / 2;
      await rest(document.hidden ? PASS_HIDDEN : least, signal);
    } catch (error) {
      if (signal.aborted) return;
      bad(error);
      await rest(Math.max(error.retryAfter || 0, Math.min(5000, 300 * 2 ** Math.min(failures, 5))), signal);
    }
  }
}

async function pass(signal) {
  const began = Date.now();
  const seen = new Set();
  let after = null;
  do {
    const asked = Date.now();
    const page = await api.page(after, PAGE, signal);
    for (const row of page.locks) {
      seen.add(row.lock);
      takeLine(row, asked);
    }
    model.notShown = page.not_shown || "";
    good();
    on.change();
    after = page.next ?? null;
    // The first pass is quick; later ones leave the service at least three quarters of the time.
    if (after !== null && model.loaded) await rest(Math.max(250, 3 * (Date.now() - asked)), signal);
  } while (after !== null && !signal.aborted);
  if (signal.aborted) return;
  dropUnseen(seen, began);
  model.loaded = true;
  on.change();
}

let asking = 0;

/** The event did not tell everything, such as the owner: the listing will. At most one more look a second. */
function askSoon() {
  asking ||= setTimeout(() => {
    asking = 0;
    poke();
  }, model.lines.size > 2000 ? 3000 : 700);
}

function events(signal) {
  let began = false;
  follow("v1/events", {
    signal,
    open() {
      model.eventsFlow = true;
      poke();
      on.change();
    },
    give({ type, id, data }) {
      let event;
      try {
        event = JSON.parse(data);
      } catch {
        return;
      }
      const kind = event.type || type;
      // The first stream begins with a reset; only a later one is a gap.
      const begins = kind === "reset" && !began;
      began = true;
      if (kind === "store_down") setConn("store");
      if (kind === "store_up" || kind === "reset") poke();
      if (!begins) takeEvent(kind, event, id);
      if (!event.owner && (kind === "queued" || kind === "granted")) askSoon();
      on.change();
    },
    failed(error) {
      model.eventsFlow = false;
      if (error.status === 401) bad(error);
      else poke();
    },
  });
}

async function store(signal) {
  while (!signal.aborted) {
    if (!document.hidden) {
      try {
        const asked = performance.now();
        model.store = await api.store(signal);
        const took = model.store.latency_ms ?? performance.now() - asked;
        model.series.answer = [...model.series.answer.slice(-59), took];
        model.storeHidden = false;
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === 403) model.storeHidden = true;
      }
    }
    await pause(STORE, signal);
  }
}

/** Follows one line closely until `signal` ends it: its past once, then every change, at most one a second. */
export async function followLine(name, signal, changed) {
  past(name, signal, changed);
  let change = "";
  let wait = LOOK;
  while (!signal.aborted) {
    const asked = Date.now();
    try {
      const row = await api.line(name, change, wait, signal);
      change = row.change || "";
      wait = row.tickets.length > 200 ? 4 * LOOK : LOOK;
      // The answer to a long poll tells how the line stood when the answer was made, not when it was asked for.
      takeLine(row, change ? Date.now() : asked);
      changed();
      await pause(1000, signal);
    } catch (error) {
      if (signal.aborted) return;
      change = "";
      await pause(error.status === 404 ? 2000 : 1500, signal);
    }
  }
}

async function past(name, signal, changed) {
  try {
    takeHistory(name, await api.history(name, signal));
    changed();
  } catch {
    // Without a history the timeline begins when the page was opened.
  }
}
