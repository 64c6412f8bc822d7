// Runs before the first paint, so that no other theme flashes by.
try {
  document.documentElement.dataset.theme = localStorage.getItem("lockkeeper-theme") || "";
} catch {
  // Storage is blocked: the system's theme is used.
}
