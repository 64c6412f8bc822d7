// What the console knows: lines, events, the store, and how old that knowledge is. It is fed by pages of the listing,
// by single lines and by events; views only read it.

import { localTime } from "./api.js";

export const MINUTE = 60_000;
export const SPAN = 15 * MINUTE;
const PLAIN = Infinity;
const MOST_EVENTS = 600;
const MOST_SPANS = 400;
const MOST_FREE = 5_000;
/** Between two looks at a ticket its remaining time is counted down for so long, then it stands still. */
const COUNT_DOWN = 4_000;

export const model = {
  lines: new Map(),
  events: [],
  eventCount: 0,
  /** [grants, comings and goings, bad ends] for every 2 s, the newest first. */
  rates: Array.from({ length: 60 }, () => [0, 0, 0]),
  grants: [],
  stat: { held: 0, waiting: 0, lines: 0, names: 0, longest: 0, oldest: null, jeopardy: 0, owners: 0, rate: 0 },
  series: { held: [], waiting: [], longest: [], rate: [], answer: [] },
  store: null,
  storeHidden: false,
  notShown: "",
  opened: Date.now(),
  loaded: false,
  conn: "connecting",
  /** When the last data came; the page shows the state of that moment. */
  since: Date.now(),
  eventsFlow: true,
};

const ended = new Map();

/** The moment that the page shows: now while data comes, else when the last came. */
export const now = () => (model.conn === "live" ? Date.now() : model.since);

const noLine = (name) => ({
  name,
  low: name.toLowerCase(),
  cap: PLAIN,
  kind: "exclusive",
  holders: [],
  waiters: [],
  spans: [],
  fence: "",
  change: "",
  /** From then on the line's past is known. */
  since: model.opened,
  touched: Date.now(),
});

export function lineOf(name) {
  let line = model.lines.get(name);
  if (!line) {
    line = noLine(name);
    model.lines.set(name, line);
  }
  return line;
}

const weightOf = (mode) => (mode?.permits ? mode.permits.weight : 1);
export const kindOf = (mode) => (mode?.permits ? "permits" : mode === "shared" ? "shared" : "exclusive");
const fenceOf = (of) => (of.fence_text && of.fence_text !== "0" ? of.fence_text : of.fence ? String(of.fence) : "");

/** Only these stores show tickets of other libraries' clients. */
const OPEN_STORES = new Set(["etcd", "zookeeper"]);

function ownerOf(ticket, owner) {
  const unnamed = !!owner && !owner.host && !owner.pid && !owner.program;
  ticket.foreign = unnamed && OPEN_STORES.has(model.store?.scheme);
  ticket.orphan = owner === null;
  ticket.unsure = owner === undefined;
  ticket.owner = owner?.program || owner?.host || "";
  ticket.host = owner?.host || "";
  ticket.pid = owner?.pid || 0;
  ticket.who = !owner || unnamed ? ticket.id : `${owner.program}\n${owner.host}\n${owner.pid}`;
}

/** A ticket of the listing; `old` is what was known of it. Its state is judged here, when the data is fresh. */
function ticketOf(row, old, at) {
  const ticket = old || { id: row.ticket, born: at, renewed: false };
  ticket.mode = row.mode;
  ticket.kind = kindOf(row.mode);
  ticket.weight = weightOf(row.mode);
  ticket.fence = fenceOf(row);
  ticket.granted = ticket.fence || row.fence !== undefined || row.fence_text !== undefined;
  ticket.label = row.label || "";
  ownerOf(ticket, row.owner ?? null);
  ticket.entered = ticket.foreign && !row.entered_ago_ms ? ticket.born : at - row.entered_ago_ms;
  ticket.got = !ticket.granted ? 0 : row.granted_ago_ms == null ? ticket.got || ticket.entered : at - row.granted_ago_ms;
  const unknown = row.ends_in_ms == null || (ticket.foreign && !row.ends_in_ms);
  const ends = unknown ? Infinity : at + row.ends_in_ms;
  if (old && ends > old.ends + 1000) ticket.renewed = true;
  ticket.ends = ends;
  ticket.at = at;
  // The longest remaining time that was ever seen is the TTL, as far as a listing shows it.
  ticket.life = unknown ? Infinity : Math.max(old && old.life !== Infinity ? old.life : 0, row.ends_in_ms);
  judge(ticket);
  return ticket;
}

function judge(ticket) {
  const left = ticket.ends - ticket.at;
  const part = left / ticket.life;
  const plain = ticket.foreign ? "foreign" : ticket.granted ? "held" : "waiting";
  ticket.state = left === Infinity || !ticket.granted ? plain
    : part < 0.25 ? "expiring"
    : part < 0.5 && ticket.renewed ? "jeopardy"
    : plain;
}

export const stateOf = (ticket) => ticket.state;
/** Until the ticket ends; it stands still when its data is old, because a renewal that came since is not known. */
export const left = (ticket) => Math.max(0, ticket.ends - Math.min(now(), ticket.at + COUNT_DOWN));
export const lifePart = (ticket) => (ticket.ends === Infinity ? 1 : left(ticket) / Math.max(1, ticket.life));

export const soonest = (line) => line.holders.reduce((a, b) => (!a || b.ends < a.ends ? b : a), null);
export const lineState = (line) => (line.holders.length ? soonest(line).state : "free");
export const inDanger = (line) => line.holders.some((ticket) => ticket.state === "expiring" || ticket.state === "jeopardy");
export const inUse = (line) => line.holders.length > 0 || line.waiters.length > 0;
export const used = (line) => line.holders.reduce((n, ticket) => n + ticket.weight, 0);

function settle(line, permits) {
  const first = line.holders[0] || line.waiters[0];
  if (permits) line.cap = permits;
  else if (first?.mode?.permits) line.cap = first.mode.permits.of;
  const all = [...line.holders, ...line.waiters];
  if (all.length) {
    line.kind = all.some((q) => q.kind === "permits") ? "permits" : all.some((q) => q.kind === "shared") ? "shared" : "exclusive";
  }
  for (const holder of line.holders) if (holder.fence) line.fence = holder.fence;
}

/** Takes over one line as the service has shown it; `asked` is when the request was sent. */
export function takeLine(row, asked) {
  const at = Date.now();
  const line = lineOf(row.lock);
  const known = new Map([...line.holders, ...line.waiters].map((ticket) => [ticket.id, ticket]));
  const rows = row.tickets.filter((ticket) => !(ended.get(ticket.ticket) > asked - 1000));
  const tickets = rows.map((ticket) => {
    const old = known.get(ticket.ticket);
    const late = old?.granted && !ticketGranted(ticket) && old.heard > asked;
    return late ? old : ticketOf(ticket, old, at);
  });
  const here = new Set(tickets);
  for (const old of known.values()) {
    if (here.has(old)) continue;
    if (old.heard > asked) tickets.push(old);
    else if (old.granted) closeSpan(line, old, at, "released");
  }
  line.holders = tickets.filter((ticket) => ticket.granted);
  line.waiters = tickets.filter((ticket) => !ticket.granted);
  line.change = row.change || "";
  line.touched = at;
  settle(line, row.permits);
  return line;
}

const ticketGranted = (row) => row.fence !== undefined || row.fence_text !== undefined;

/** After a whole pass over the listing: lines that it did not show, and that no event has touched since, are free. */
export function dropUnseen(seen, began) {
  const free = [];
  for (const line of model.lines.values()) {
    if (!seen.has(line.name) && line.touched < began) emptyLine(line);
    if (!inUse(line)) free.push(line);
  }
  const late = Date.now() - SPAN;
  free.sort((a, b) => b.touched - a.touched);
  free.forEach((line, i) => (i >= MOST_FREE || line.touched < late) && model.lines.delete(line.name));
  for (const [id, at] of ended) if (at < Date.now() - 2 * MINUTE) ended.delete(id);
}

function emptyLine(line) {
  if (!inUse(line)) return;
  for (const holder of line.holders) closeSpan(line, holder, Date.now(), "released");
  line.holders = [];
  line.waiters = [];
  line.touched = Date.now();
}

/** `how` is "released" as long as only a listing has shown that the ticket is gone; the event corrects it. */
function closeSpan(line, ticket, end, how) {
  const span = line.spans.find((one) => one.ticket.id === ticket.id);
  if (span) {
    if (span.how === "released") span.how = how;
    return;
  }
  line.spans.push({ ticket, end, how });
  if (line.spans.length > MOST_SPANS) line.spans.shift();
}

// Events

const BAD = new Set(["lost", "expired", "evicted"]);
const ENDS = new Set(["released", "withdrawn", "lost", "expired", "evicted"]);

const ticketOfEvent = (event, at) => {
  const ticket = { id: event.ticket, born: at, renewed: false, mode: event.mode || "exclusive", label: event.label || "" };
  ticket.kind = kindOf(ticket.mode);
  ticket.weight = weightOf(ticket.mode);
  ticket.fence = "";
  ownerOf(ticket, event.owner);
  Object.assign(ticket, { granted: false, got: 0, entered: at, ends: Infinity, life: Infinity, at, state: "waiting" });
  return ticket;
};

const find = (line, id) => line.holders.find((q) => q.id === id) || line.waiters.find((q) => q.id === id);
const without = (list, ticket) => list.filter((q) => q !== ticket);

/** Takes over one event of the stream, as the service tells it. */
export function takeEvent(type, event, id) {
  const at = Math.min(Date.now(), event.at ? localTime(event.at) : Date.now());
  count(type, at);
  let ticket = null;
  if (event.lock && event.ticket) {
    const line = lineOf(event.lock);
    line.touched = Date.now();
    ticket = changeLine(line, type, event, at);
    settle(line, 0);
  }
  note(type, event, ticket, at, id);
}

/** Applies an event to a line; also used for the past, with `past` set: then only the spans are filled. */
function changeLine(line, type, event, at) {
  const known = find(line, event.ticket);
  const ticket = known || ticketOfEvent(event, at);
  ticket.heard = Date.now();
  if (event.label !== undefined && event.label !== null) ticket.label = event.label;
  if (event.owner && !ticket.owner) ownerOf(ticket, event.owner);
  if (type === "queued" && !known && !ended.has(event.ticket)) line.waiters = [...line.waiters, ticket];
  if (type === "granted") {
    ticket.fence = fenceOf(event);
    ticket.granted = true;
    ticket.got = at;
    if (!known && event.waited_ms) ticket.entered = at - event.waited_ms;
    judge(ticket);
    line.waiters = without(line.waiters, ticket);
    if (ticket.kind === "exclusive") handOver(line, ticket, at);
    if (!line.holders.includes(ticket) && !ended.has(event.ticket)) line.holders = [...line.holders, ticket];
  }
  if (ENDS.has(type)) {
    ended.set(event.ticket, Date.now());
    if (!known && event.held_ms != null) {
      Object.assign(ticket, { granted: true, got: at - event.held_ms, fence: fenceOf(event) });
      ticket.entered = ticket.got - (event.waited_ms || 0);
    }
    line.holders = without(line.holders, ticket);
    line.waiters = without(line.waiters, ticket);
    if (ticket.granted || BAD.has(type)) closeSpan(line, ticket, at, type);
  }
  return ticket;
}

/** An exclusive grant says that no other ticket holds the lock, even if the end of the last hold was not told. */
function handOver(line, ticket, at) {
  for (const other of line.holders) if (other !== ticket) closeSpan(line, other, at, "released");
  line.holders = line.holders.filter((other) => other === ticket);
}

function count(type, at) {
  if (Date.now() - at > MINUTE) return;
  model.rates[0][type === "granted" ? 0 : BAD.has(type) ? 2 : 1]++;
}

function note(type, event, ticket, at, id) {
  const seen = ticket || {};
  const item = {
    key: id || `n${model.eventCount}`,
    no: model.eventCount++,
    type,
    lock: event.lock || "",
    low: (event.lock || "").toLowerCase(),
    at,
    fence: fenceOf(event) || seen.fence || "",
    owner: event.owner?.program || event.owner?.host || seen.owner || "",
    foreign: !!seen.foreign,
    /** Its owner may become known later. */
    ticket,
    label: event.label || "",
    waited: event.waited_ms ?? (type === "granted" && seen.entered ? at - seen.entered : 0),
    held: event.held_ms ?? (ENDS.has(type) && seen.got ? at - seen.got : null),
    text: event.detail || "",
  };
  model.events.unshift(item);
  if (model.events.length > MOST_EVENTS + 100) model.events.length = MOST_EVENTS;
  if (type !== "granted" || Date.now() - at > MINUTE) return;
  model.grants.push({ at, waited: item.waited });
}

/** Fills a line's past from the service's history of it: events, oldest first. */
export function takeHistory(name, { events, since }) {
  const line = lineOf(name);
  line.since = localTime(since);
  const past = { ...noLine(name), holders: [], waiters: [] };
  const gone = new Set();
  for (const event of events) {
    const at = localTime(event.at);
    const type = event.type;
    const known = find(past, event.ticket);
    const ticket = known || ticketOfEvent(event, at);
    if (type === "queued" && !known) past.waiters.push(ticket);
    if (type === "granted") {
      Object.assign(ticket, { granted: true, got: at, fence: fenceOf(event) });
      if (!known) ticket.entered = at - (event.waited_ms || 0);
      past.waiters = without(past.waiters, ticket);
      past.holders.push(ticket);
    }
    if (ENDS.has(type)) {
      if (!known && event.held_ms != null) {
        Object.assign(ticket, { granted: true, got: at - event.held_ms, fence: fenceOf(event) });
        ticket.entered = ticket.got - (event.waited_ms || 0);
      }
      past.holders = without(past.holders, ticket);
      past.waiters = without(past.waiters, ticket);
      gone.add(ticket.id);
      if (ticket.granted || BAD.has(type)) closeSpan(past, ticket, at, type);
    }
  }
  const mine = line.spans.filter((span) => !gone.has(span.ticket.id));
  // A listing has told more of the tickets that the page has seen itself, such as the owner.
  const seen = new Map(line.spans.map((span) => [span.ticket.id, span.ticket]));
  for (const span of past.spans) if (seen.get(span.ticket.id)?.owner) span.ticket = seen.get(span.ticket.id);
  line.spans = [...past.spans, ...mine].sort((a, b) => a.end - b.end).slice(-MOST_SPANS);
}

export const recentSpans = (line) => line.spans.filter((span) => span.end > now() - SPAN);

// Figures

let beat = 0;
let step = 1;

/** Once a second while data comes: the figures of the overview, and now and then a sample for its curves. */
export function measure() {
  const at = Date.now();
  const stat = { held: 0, waiting: 0, lines: 0, names: model.lines.size, longest: 0, oldest: null, jeopardy: 0 };
  const owners = new Set();
  let first = Infinity;
  for (const line of model.lines.values()) {
    if (line.holders.length) stat.held++;
    for (const ticket of line.holders) {
      owners.add(ticket.who);
      if (ticket.state === "jeopardy" || ticket.state === "expiring") stat.jeopardy++;
    }
    if (!line.waiters.length) continue;
    stat.lines++;
    stat.waiting += line.waiters.length;
    for (const ticket of line.waiters) {
      owners.add(ticket.who);
      if (ticket.entered < first) [first, stat.oldest] = [ticket.entered, line];
    }
  }
  stat.longest = stat.oldest ? at - first : 0;
  stat.owners = owners.size;
  model.grants = model.grants.filter((grant) => grant.at > at - MINUTE);
  const watched = Math.min(MINUTE, Math.max(2000, at - model.opened));
  stat.rate = (model.grants.length * 1000) / watched;
  const waits = model.grants.map((grant) => grant.waited).sort((a, b) => a - b);
  stat.half = waits[Math.floor(waits.length / 2)] ?? 0;
  stat.most = waits[Math.floor(waits.length * 0.99)] ?? 0;
  model.stat = stat;
  if (beat % 2 === 0) {
    model.rates.pop();
    model.rates.unshift([0, 0, 0]);
  }
  if (beat++ % step === 0) sample(stat);
}

/** A sample a second at first; when the curve is full, every second one goes and the pace halves, down to 16 s. */
function sample(stat) {
  const full = model.series.held.length >= 90;
  const halve = full && step < 16;
  if (halve) step *= 2;
  for (const key of ["held", "waiting", "longest", "rate"]) {
    const values = model.series[key];
    model.series[key] = [...(halve ? values.filter((_, i) => i % 2) : values.slice(-89)), stat[key]];
  }
}
