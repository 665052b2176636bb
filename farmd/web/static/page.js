"use strict";
// Keeps a page as it is on the farm: an event says that something changed, the page asks for itself again,
// and the parts that differ are exchanged. A part in which somebody types is left alone.
(() => {
  const main = document.getElementById("main");
  const said = document.getElementById("live");
  if (!main.dataset.live) return;
  let seen = main.dataset.at, source = null, busy = false, again = false, timer = 0;

  function typing(part) {
    const active = document.activeElement;
    if (part.contains(active) && active.matches("input, select, textarea")) return true;
    return [...part.querySelectorAll("input, textarea")].some((field) => field.value !== field.defaultValue);
  }

  function exchange(old, now) {
    if (old.outerHTML === now.outerHTML || typing(old)) return;
    const active = old.contains(document.activeElement) ? document.activeElement : null;
    const link = active && active.getAttribute("href");
    const opened = new Set([...old.querySelectorAll("details[open]")].map((each) => each.id));
    for (const each of now.querySelectorAll("details")) each.open = opened.has(each.id);
    old.replaceWith(now);
    const next = link && [...now.querySelectorAll("a")].find((each) => each.getAttribute("href") === link);
    if (next) next.focus({ preventScroll: true });
  }

  function merge(page) {
    const now = new Map([...page.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, part]));
    for (const old of main.querySelectorAll("[data-part]")) {
      const next = now.get(old.dataset.part);
      if (next) exchange(old, next);
      else if (!typing(old)) old.remove();
      now.delete(old.dataset.part);
    }
    for (const part of now.values()) main.append(part);
  }

  async function refresh() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", redirect: "manual" });
      if (answer.ok) merge(new DOMParser().parseFromString(await answer.text(), "text/html"));
      else if (answer.status === 404) said.textContent = "gone";
      else if (answer.type === "opaqueredirect") location.reload();
    } catch { said.textContent = "not connected"; }
    busy = false;
    if (again) { again = false; setTimeout(refresh, 500); }
  }

  function connect() {
    if (source || document.hidden) return;
    const query = new URLSearchParams({ of: main.dataset.live, since: seen });
    source = new EventSource(`/events?${query}`);
    source.onopen = () => { said.textContent = "live"; };
    source.addEventListener("silent", (event) => {
      said.textContent = event.data ? `not live: Consul does not answer this farm, the data are of ${event.data}` : "live";
      refresh(); // above the page stands the same
    });
    source.addEventListener("change", (event) => { seen = event.lastEventId; refresh(); });
    source.onerror = () => {
      said.textContent = "not connected";
      if (source.readyState !== EventSource.CLOSED) return; // it connects again by itself
      leave();
      refresh(); // a session that ended leads to the sign-in
      timer = setTimeout(connect, 5000 + Math.random() * 10000);
    };
  }

  function leave() {
    clearTimeout(timer);
    if (source) source.close();
    source = null;
  }

  // A browser opens few connections to one host, so a tab that nobody sees keeps none.
  document.addEventListener("visibilitychange", () => (document.hidden ? leave() : connect()));
  addEventListener("pagehide", leave);
  addEventListener("pageshow", connect);
  connect();
})();
