// The prompt for a bearer token, shown when the service answers 401.

import { hasToken, useToken } from "./api.js";
import { $, h, set } from "./dom.js";
import { restart } from "./feed.js";
import { t } from "./i18n.js";
import { closeSheet, sheet, sheetTitle } from "./sheets.js";

export function askToken() {
  const refused = hasToken();
  if ($("sheet").open && $("sheet").querySelector(".token")) return;
  useToken("");
  showToken();
  const input = h("input.mono.token", { type: "password", autocomplete: "off", spellcheck: "false", autofocus: true, "aria-labelledby": "token-word" });
  const submit = (e) => {
    e.preventDefault();
    if (!input.value.trim()) return;
    useToken(input.value);
    closeSheet();
    showToken();
    restart();
  };
  sheet(sheetTitle(t("token_title")), refused && h("p.s-lost", { role: "alert" }, t("token_wrong")), h("p.dim", t("token_why")),
    h("form", { onsubmit: submit }, h("label", h("span", { id: "token-word" }, t("token_label")), input),
      h("footer", h("button", { type: "button", onclick: closeSheet }, t("cancel")), h("button.go", { type: "submit" }, t("token_go")))));
}

/** The key in the bar is there while a token is in use; a click forgets it. */
export function showToken() {
  const button = $("token");
  button.hidden = !hasToken();
  button.title = t("token_forget");
  button.setAttribute("aria-label", button.title);
  button.onclick = () => {
    useToken("");
    set($("say"), t("token_forget"));
    location.reload();
  };
}
