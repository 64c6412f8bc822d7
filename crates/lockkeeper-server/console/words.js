// How a ticket, a lock and an event read: used on every page.

import { barTo, glyph, h, set, setGlyph, nameEl, sync } from "./dom.js";
import { clock, dur, fence as shortFence, t } from "./i18n.js";
import { left, lifePart, now, used } from "./state.js";

/** What a ticket is called: its program; of a client that gave no name, its label. */
export function ownerOf(ticket) {
  if (ticket.owner) return ticket.owner;
  if (ticket.orphan) return t("no_session");
  if (ticket.unsure) return ticket.label || ticket.id.slice(0, 8);
  return ticket.label || t(ticket.foreign ? "another_client" : "unnamed");
}

/** The second line about a ticket: where its process runs. */
export function placeOf(ticket) {
  if (ticket.foreign) return t("s_foreign");
  return [ticket.host, ticket.pid ? t("process", ticket.pid) : ""].filter(Boolean).join(" · ");
}

export function modeOf(line) {
  if (!line.holders.length) return t("free");
  if (line.kind === "permits") return t("permits_n", used(line), line.cap);
  if (line.kind !== "shared") return t("exclusive");
  return line.holders[0].kind === "shared" ? t("readers_n", line.holders.length) : t("writer");
}

export function holderOf(line) {
  const first = line.holders[0];
  if (!first) return "–";
  return ownerOf(first) + (line.holders.length > 1 ? ` +${line.holders.length - 1}` : "");
}

/** An age; of a foreign ticket only since when it was seen. */
export const ageOf = (ticket, from) => (ticket.foreign ? "≥ " : "") + dur(now() - from);

export function lifeTo(node, ticket) {
  node.hidden = !ticket;
  if (!ticket) return;
  barTo(node.firstChild, ticket.state, lifePart(ticket));
  set(node.lastChild, ticket.ends === Infinity ? "∞" : dur(left(ticket) + 999));
}

/** Marks a glyph's state in words too. */
export function stateTo(node, state) {
  setGlyph(node, state);
  node.parentNode.title = t("s_" + state);
}

export const EVENT_TYPES = ["granted", "queued", "released", "withdrawn", "lost", "expired", "evicted"];
const KNOWN = new Set([...EVENT_TYPES, "label", "changed", "store_up", "store_down", "reset"]);
const eventWord = (type) => (KNOWN.has(type) ? t("e_" + type) : type);

function eventNote(event) {
  if (event.type === "reset") return t("reset_text");
  if (event.type === "label") return event.label;
  const fence = event.fence && event.type === "granted" ? `${t("fence")} ${shortFence(event.fence)}` : "";
  const waited = event.type === "granted" && event.waited > 999 ? t("waited", dur(event.waited)) : "";
  const held = event.held != null ? t("held_time", dur(event.held)) : "";
  return [fence, waited, held].filter(Boolean).join(" · ");
}

const byOf = (event) => event.owner || (event.ticket ? ownerOf(event.ticket) : "");

const makeEvent = (event) =>
  h("li.event", h("time", clock(event.at)), h("span.who", glyph(event.type), eventWord(event.type)),
    event.lock ? nameEl(event.lock) : h("span"), h("span.by" + (event.foreign ? ".s-foreign" : ""), byOf(event)),
    h("span.more", eventNote(event)));

export const eventList = (node, events) => sync(node, events, (event) => event.no, makeEvent, (item, event) => set(item.children[3], byOf(event)));
