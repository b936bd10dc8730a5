"use strict";
// Every page works without this: forms have buttons, and a page that is loaded again is up to date.
(() => {
  for (const form of document.querySelectorAll("form.picks:has(.pick-line)")) {
    const boxes = [...form.querySelectorAll("input[name=audit]")];
    const said = form.querySelector("[role=status]");
    const first = said.textContent;
    const follow = () => {
      const chosen = boxes.filter((box) => box.checked);
      const scenario = chosen.length ? chosen[0].dataset.scenario : null;
      for (const box of boxes) box.disabled = scenario !== null && box.dataset.scenario !== scenario;
      said.textContent = chosen.length === 1 ? `Tick another audit of ${scenario}.` : first;
      return chosen.length;
    };
    for (const box of boxes) {
      box.addEventListener("change", () => { if (follow() === 2) form.requestSubmit(); });
    }
    addEventListener("pageshow", () => { // back from a comparison: nothing is ticked
      for (const box of boxes) box.checked = false;
      follow();
    });
  }

  for (const form of document.querySelectorAll("form.instant")) {
    form.addEventListener("change", () => form.requestSubmit());
  }

  // What trains is asked for again, and put in the place of what is shown.
  const live = () => [...document.querySelectorAll("[data-live]")];
  const ask = async () => {
    if (!document.hidden) {
      try {
        const answer = await fetch(location.href, { cache: "no-store" });
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
        const parts = new Map([...fresh.querySelectorAll("[data-key]")].map((one) => [one.dataset.key, one]));
        for (const part of live()) {
          const now = parts.get(part.dataset.key);
          if (now) part.replaceWith(now);
          else location.reload();
        }
      } catch { /* the server has ended, or is busy: ask again */ }
    }
    if (live().length) setTimeout(ask, 2000);
  };
  if (live().length) setTimeout(ask, 2000);
})();
