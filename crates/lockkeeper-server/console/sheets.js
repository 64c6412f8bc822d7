// Dialogs: one at a time, closed by Esc.

import { $, h } from "./dom.js";
import { t } from "./i18n.js";

export function sheet(...kids) {
  const dialog = $("sheet");
  dialog.replaceChildren(...kids.flat().filter(Boolean));
  if (!dialog.open) dialog.showModal();
  dialog.querySelector("[autofocus]")?.focus();
  return dialog;
}

export const closeSheet = () => $("sheet").close();
export const sheetTitle = (text) => h("h2", { id: "sheet-title" }, text);
export const dismiss = (key) => h("button", { type: "button", onclick: closeSheet, autofocus: true }, t(key));
