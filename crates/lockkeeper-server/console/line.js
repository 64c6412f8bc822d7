// The line drawn as a line: the holder in the chamber, the tickets on the rail. Full tickets as many as fit, then slim
// ones, then bars on a logarithmic scale, so that a thousand waiters are a few hundred elements.

import { attr, fact, glyph, h, path, reach, set, setGlyph, svg, sync } from "./dom.js";
import { dur, fence, num, t } from "./i18n.js";
import { left, lineState, lifePart, now, soonest, used } from "./state.js";
import { ageOf, ownerOf, placeOf } from "./words.js";

const FULL = 160;
const SLIM = 36;
const { floor, max, min } = Math;

/** How `n` units of a line are shown in `width`: {full, slim, bars, x, width}, where bars begin at `x`. */
export function lineLayout(n, width, narrow) {
  if (narrow) {
    const full = min(n, n > 8 ? 6 : 8);
    return { full, slim: 0, bars: n - full, x: 0, width };
  }
  const fit = min(n, floor((width - n * SLIM) / (FULL - SLIM)));
  if (fit >= min(n, 3)) return { full: fit, slim: n - fit, bars: 0, x: 0, width };
  const full = width > 480 ? 2 : 1;
  const slim = width > 800 ? 5 : full * 2 - 1;
  const x = full * FULL + slim * SLIM + 8;
  return { full, slim, bars: n - full - slim, x, width: width - x };
}

/** Adjacent readers enter together: one unit of the line. */
export function unitsOf(line) {
  const units = [];
  line.waiters.forEach((ticket, i) => {
    const reader = ticket.kind === "shared";
    const last = units.at(-1);
    if (reader && last?.reader) last.list.push(ticket);
    else units.push({ at: i + 1, reader, list: [ticket] });
  });
  return units;
}

/** The bars behind the tickets: [{x, from, to, oldest, foreign}], each at least 3.7 px from the one before. */
export function bucketsOf(units, shown, width) {
  const count = units.length - shown;
  const buckets = [];
  units.slice(shown).forEach((unit, i) => {
    const x = reach(i, width - 10, 14, count);
    if (!i || x - buckets.at(-1).x > 3.7) buckets.push({ x, from: unit.at, to: unit.at, oldest: unit.list[0].entered, foreign: false });
    const bucket = buckets.at(-1);
    bucket.to = unit.at;
    bucket.foreign ||= unit.list[0].foreign;
  });
  return buckets;
}

const CIRCLE = 2 * Math.PI * 45;
const image = (key) => ({ role: "img", "aria-hidden": "false", "aria-label": t(key) });
const ring = (spec) => h("~circle." + spec, { cx: 54, cy: 54, r: 45, "stroke-dasharray": CIRCLE });

/** The chamber: who holds the lock, with the ring of the remaining life. */
export function chamber() {
  const arc = ring("arc");
  const secs = h("~text.secs", { x: 54, y: 60 });
  const of = h("~text.of", { x: 54, y: 77 });
  const due = path("due", "M18.5 74.5L11.6 78.5");
  const who = h("div.holder");
  const dial = svg("ring", { viewBox: "0 0 108 108", ...image("time_to_live") }, ring("track"), arc, due, secs, of);
  const gate = h("div.gate", h("div.chamber", dial, who));
  let was = "";

  gate.draw = (line) => {
    const ticket = soonest(line);
    const state = lineState(line);
    const slots = ticket && (ticket.kind === "permits" || ticket.kind === "shared");
    attr(gate, "class", `gate s-${state}${slots ? " wide" : ""}`);
    arc.style.strokeDashoffset = ticket ? CIRCLE * (1 - lifePart(ticket)) : CIRCLE;
    arc.style.opacity = ticket ? 1 : 0;
    const endless = ticket?.ends === Infinity;
    set(secs, !ticket ? "–" : endless ? "∞" : short(left(ticket)));
    set(of, !ticket ? "" : endless ? t("never_ends") : ticket.renewed ? t("seconds_left", ttlOf(ticket)) : t("left"));
    due.style.display = ticket && !endless ? "" : "none";
    const key = [line.holders.map((q) => q.id + q.label + q.who + q.fence), state, line.waiters.length > 0 && !ticket, line.fence].join();
    if (was !== key) {
      was = key;
      who.replaceChildren(...(!ticket ? free(line) : slots ? slotsOf(line) : one(ticket)));
    }
    who.querySelectorAll(".since").forEach((node, i) => set(node, ageOf(line.holders[i], line.holders[i].got)));
  };
  return gate;
}

/** The TTL in seconds, from the longest remaining time that was seen; most are multiples of five. */
function ttlOf(ticket) {
  const five = Math.ceil(ticket.life / 5e3) * 5e3;
  return ticket.life > five * 0.9 ? five / 1e3 : Math.ceil(ticket.life / 1e3);
}

const short = (ms) => (ms < 600_000 ? String(Math.ceil(ms / 1e3)) : `${Math.round(ms / 60_000)}m`);

const free = (line) => [
  h("p.owner", t("nothing_holds")),
  h("p.dim", t(line.waiters.length ? "closed_now" : "next_gets")),
  line.fence && h("dl", fact(t("fence"), h("dd.mono", { title: line.fence }, fence(line.fence)))),
].filter(Boolean);

const why = (ticket) => {
  const key = { jeopardy: "overdue", expiring: "ends_soon" }[ticket.state];
  return key && h("p.who.why.s-" + ticket.state, glyph(ticket.state), t(key));
};

const one = (ticket) => [
  h("p.lead", t("holds_lock")),
  h("p.owner", { title: ownerOf(ticket) }, ownerOf(ticket)),
  h("p.mono.dim.place", placeOf(ticket) || "–"),
  why(ticket),
  h("dl", ticket.fence && fact(t("fence"), h("dd.mono", { title: ticket.fence }, fence(ticket.fence))), fact(t("held_for"), h("dd.since")),
    ticket.label && ticket.owner ? fact(t("label"), h("dd.lab", { title: ticket.label }, ticket.label)) : fact(t("ticket"), h("dd.mono", { title: ticket.id }, ticket.id.slice(0, 8)))),
].filter(Boolean);

function slotsOf(line) {
  const readers = line.kind !== "permits";
  const head = readers ? t("readers_hold", line.holders.length) : t("permits_taken", used(line), line.cap);
  const many = line.holders.length > 12;
  const slots = line.holders.slice(0, many ? 11 : 12).map((ticket) => {
    const node = h("li", { title: `${ownerOf(ticket)} ${ticket.label}` }, h("b", ownerOf(ticket)), h("span.since"));
    node.style.gridColumn = "span " + min(4, readers ? 1 : ticket.weight);
    return node;
  });
  const room = readers || many ? 0 : min(12 - slots.length, line.cap - used(line));
  const rest = many ? [h("li.open", t("more_holders", num(line.holders.length - 11)))] : [];
  return [h("p.lead", head), h("ul.slots", slots, Array.from({ length: max(0, room) }, () => h("li.open", t("free"))), rest)];
}

const makeTicket = () =>
  h("li", h("span.stub"), h("span.body", h("b"), h("span.host"), h("span.age", glyph("waiting"), h("span"))));

function fillTicket(node, unit, line, slim, x) {
  const ticket = unit.list[0];
  const many = unit.list.length > 1;
  const [stub, body] = node.children;
  const [who, host, wait] = body.children;
  attr(node, "class", `ticket s-${ticket.state}${slim ? " slim" : ""}${many ? " stack" : ""}`).style.setProperty("--x", x + "px");
  set(stub, many ? `${unit.at}–${unit.at + unit.list.length - 1}` : String(unit.at));
  set(who, many ? `${unit.list.length} ${t("readers")}` : ownerOf(ticket));
  const mode = line.kind === "permits" ? t("needs", ticket.weight) : line.kind === "shared" ? t(unit.reader ? "reader" : "writer") : "";
  set(host, many ? t("enter_together") : mode || (ticket.owner && ticket.label) || ticket.host || placeOf(ticket));
  setGlyph(wait.firstChild, ticket.state);
  set(wait.lastChild, ageOf(ticket, ticket.entered));
  const names = unit.list.slice(0, 30).map(ownerOf).join(", ");
  node.title = `${names} · ${placeOf(ticket)} · ${wait.textContent}`;
}

const MARKS = [10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4];

/** The rail with the tickets that wait. */
export function rail() {
  const tickets = h("ol.tickets");
  const caption = h("p.caption");
  const bars = svg("bars", { tabindex: "0", ...image("line") });
  const node = h("div.rail", tickets, bars, caption);
  let spot = -1;
  let buckets = [];
  let line = null;
  const look = (i) => {
    spot = max(0, min(buckets.length - 1, i));
    node.draw(line);
  };
  const away = () => {
    spot = -1;
    node.draw(line);
  };
  bars.onpointermove = (e) => look(buckets.findIndex((b) => b.x + 4 > e.offsetX));
  bars.onpointerleave = away;
  bars.onblur = away;
  bars.onkeydown = (e) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (!by) return;
    e.preventDefault();
    look(spot + by);
  };

  node.draw = (of) => {
    line = of;
    const units = unitsOf(line);
    const narrow = innerWidth <= 760;
    const plan = lineLayout(units.length, node.clientWidth, narrow);
    const shown = plan.full + plan.slim;
    sync(tickets, units.slice(0, shown), (unit) => unit.list[0].id, makeTicket, (item, unit, i) => {
      const slim = i >= plan.full;
      fillTicket(item, unit, line, slim, slim ? plan.full * FULL + (i - plan.full) * SLIM : i * FULL);
    });
    bars.style.display = plan.bars ? "" : "none";
    buckets = plan.bars ? bucketsOf(units, shown, plan.width) : [];
    if (plan.bars) drawBars(units, plan, shown, narrow ? 44 : 112);
    const bucket = buckets[spot];
    if (bucket) set(caption, t("places", num(bucket.from), num(bucket.to), dur(now() - bucket.oldest)));
    else set(caption, !units.length ? t("nothing_waits") : plan.bars ? t("and_more", num(line.waiters.length - units[shown].at + 1)) : "");
    caption.classList.toggle("quiet", !units.length);
  };

  function drawBars(units, plan, shown, tall) {
    const eldest = max(1, now() - units[shown].list[0].entered);
    const high = (b) => max(4, min(1, (now() - b.oldest) / eldest) * (tall - 2));
    const stroke = (b) => `M${(b.x + 2).toFixed(1)} ${tall}V${(tall - high(b)).toFixed(1)}`;
    const foot = (b) => `M${(b.x + 2).toFixed(1)} ${tall}v-9`;
    const marks = MARKS.filter((m) => m > shown + 3 && m <= units.length);
    attr(bars, "width", plan.width).style.left = plan.x + "px";
    bars.replaceChildren(path("tick", buckets.map(stroke).join("")), path("tick.s-foreign", buckets.filter((b) => b.foreign).map(foot).join("")),
      buckets[spot] ? path("tick.spot", stroke(buckets[spot])) : "",
      ...marks.map((m) => h("~text", { x: reach(m - shown, plan.width - 10, 14, plan.bars) + 2, y: tall + 20 }, num(m))));
  }
  return node;
}
