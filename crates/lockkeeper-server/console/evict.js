// Evicting in two steps: first what it means and what comes next, then the fence typed back.

import { api } from "./api.js";
import { $, glyph, h, nameEl, set } from "./dom.js";
import { tryNow } from "./feed.js";
import { num, t } from "./i18n.js";
import { closeSheet, dismiss, sheet, sheetTitle } from "./sheets.js";
import { soonest } from "./state.js";
import { ownerOf, placeOf } from "./words.js";

const top = (step, ticket, line) => [h("p.dim", t("step", step)), sheetTitle(t("evict_who", ownerOf(ticket))), nameEl(line.name, "bdi")];

export function evictSheet(line, chosen = soonest(line)) {
  if (!chosen) return;
  const next = line.waiters[0];
  const consequences = [t("evict_learns"), t("evict_refused"), next ? t("next_in_line", ownerOf(next)) : t("nothing_waits")];
  const others = line.holders.length > 1 && choice(line, chosen);
  sheet(top(1, chosen, line), others, h("ul", consequences.map((text) => h("li", text))),
    h("footer", dismiss("cancel"), h("button.danger", { type: "button", onclick: () => confirm(line, chosen) }, t("go_on"))));
}

/** Readers and permits: which of the holders? */
function choice(line, chosen) {
  const option = (ticket) =>
    h("label.option", h("input", { type: "radio", name: "ticket", value: ticket.id, checked: ticket === chosen, onchange: () => evictSheet(line, ticket) }),
      glyph(ticket.state), h("b", ownerOf(ticket)), h("span.dim", placeOf(ticket)));
  return h("fieldset.options", h("legend.dim", t("which_ticket")), line.holders.slice(0, 50).map(option));
}

function confirm(line, ticket) {
  const proof = ticket.fence || ticket.id.slice(-6);
  const go = h("button.danger.solid", { type: "submit", disabled: true }, t("evict_now"));
  const problem = h("p.s-lost", { role: "alert" });
  const input = h("input.mono", {
    inputmode: ticket.fence ? "numeric" : "text", autocomplete: "off", spellcheck: "false", autofocus: true, "aria-labelledby": "proof",
    oninput: () => (go.disabled = input.value.replace(/\s/g, "") !== proof),
  });
  const submit = async (e) => {
    e.preventDefault();
    if (go.disabled) return;
    go.disabled = true;
    set(problem, "");
    try {
      const done = await api.evict(line.name, ticket.id, ticket.fence);
      closeSheet();
      set($("say"), done.result === "gone" ? t("evict_gone") : t("evict_done", ownerOf(ticket)));
      tryNow();
    } catch (error) {
      set(problem, error.kind === "fence_changed" ? t("evict_changed") : error.status === 403 ? t("refused", error.message) : error.message);
      go.disabled = false;
    }
  };
  const shown = ticket.fence ? num(ticket.fence) : proof;
  sheet(top(2, ticket, line), h("form", { onsubmit: submit },
    h("label", h("span", { id: "proof" }, t(ticket.fence ? "type_fence" : "type_ticket"), h("b.mono", shown)), input),
    problem, h("p.dim", t("audited")), h("footer", cancel(), go)));
}

/** As `dismiss`, but the focus belongs to the field. */
const cancel = () => h("button", { type: "button", onclick: closeSheet }, t("cancel"));
