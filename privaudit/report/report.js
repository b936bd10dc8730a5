"use strict";
// The page says all it has to say without this: every panel is open, every value stands in a
// table or a title. Here panels become tabs, values show beside the pointer or under the
// keyboard's focus, and columns can be sorted.
(() => {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  const next = (items, item, key) => {
    if (key === "Home") return items[0];
    if (key === "End") return items[items.length - 1];
    return items[(items.indexOf(item) + step[key] + items.length) % items.length];
  };
  const moves = (key) => key in step || key === "Home" || key === "End";

  for (const box of document.querySelectorAll(".tabs")) {
    const panels = [...box.children];
    if (panels.length < 2) continue;
    const list = document.createElement("div");
    list.setAttribute("role", "tablist");
    list.setAttribute("aria-label", box.dataset.label);
    const show = (chosen) => panels.forEach((panel, place) => {
      const on = panel === chosen;
      panel.classList.toggle("off", !on);
      tabs[place].setAttribute("aria-selected", String(on));
      tabs[place].tabIndex = on ? 0 : -1;
    });
    const tabs = panels.map((panel) => {
      const tab = document.createElement("button");
      tab.type = "button";
      tab.id = `tab-${panel.id}`;
      tab.textContent = panel.dataset.tab;
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-controls", panel.id);
      panel.setAttribute("role", "tabpanel");
      panel.setAttribute("aria-labelledby", tab.id);
      tab.addEventListener("click", () => show(panel));
      list.append(tab);
      return tab;
    });
    list.addEventListener("keydown", (event) => {
      if (!moves(event.key) || !tabs.includes(event.target)) return;
      const tab = next(tabs, event.target, event.key);
      tab.click();
      tab.focus();
      event.preventDefault();
    });
    box.classList.add("ready");
    box.prepend(list);
    const follow = () => {
      const goal = location.hash && document.getElementById(location.hash.slice(1));
      const panel = goal && panels.find((one) => one.contains(goal));
      if (panel) show(panel);
    };
    show(panels[0]);
    follow();
    addEventListener("hashchange", follow);
  }

  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  tip.setAttribute("aria-hidden", "true"); // the value's own label is read
  document.body.append(tip);
  const hide = () => { tip.hidden = true; };
  const tell = (value) => {
    tip.textContent = value.getAttribute("aria-label");
    tip.hidden = false;
    const at = value.getBoundingClientRect();
    const left = at.left + at.width / 2 - tip.offsetWidth / 2;
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    const above = at.top - tip.offsetHeight - 6;
    tip.style.left = `${Math.max(8, Math.min(left, room))}px`;
    tip.style.top = `${above > 4 ? above : at.bottom + 6}px`;
  };
  for (const figure of document.querySelectorAll("figure svg")) {
    const values = [...figure.querySelectorAll(".value")];
    values.forEach((value, place) => {
      const title = value.querySelector("title");
      value.setAttribute("aria-label", title.textContent);
      title.remove(); // else the browser shows it as well
      value.setAttribute("tabindex", place ? "-1" : "0");
      for (const name of ["pointerenter", "focus"]) value.addEventListener(name, () => tell(value));
      for (const name of ["pointerleave", "blur"]) value.addEventListener(name, hide);
    });
    figure.addEventListener("keydown", (event) => {
      if (event.key === "Escape") hide();
      if (!moves(event.key) || !values.includes(event.target)) return;
      const value = next(values, event.target, event.key);
      event.target.setAttribute("tabindex", "-1");
      value.setAttribute("tabindex", "0");
      value.focus();
      event.preventDefault();
    });
  }
  addEventListener("scroll", hide, { passive: true, capture: true });

  // What is wider than the screen says that it scrolls, and can be reached by keyboard.
  const say = () => {
    for (const box of document.querySelectorAll(".scroll, figure")) {
      const wide = box.scrollWidth > box.clientWidth + 1;
      const before = box.previousElementSibling;
      const said = before && before.className === "sideways" ? before : null;
      if (wide) {
        box.tabIndex = 0;
        box.setAttribute("aria-label", "Wider than the screen: scrolls sideways");
        if (box.tagName === "DIV") box.setAttribute("role", "group");
        if (!said) {
          const note = document.createElement("p");
          note.className = "sideways";
          note.textContent = "Wider than the screen: scroll sideways to see all of it →";
          box.before(note);
        }
      } else if (said) {
        said.remove();
        for (const name of ["tabindex", "role", "aria-label"]) box.removeAttribute(name);
      }
    }
  };
  say();
  addEventListener("resize", say);
  addEventListener("toggle", say, true); // a fold that opens
  addEventListener("click", () => setTimeout(say)); // a tab that shows another panel

  // A link to a folded finding opens it.
  const unfold = () => {
    const goal = location.hash && document.getElementById(location.hash.slice(1));
    if (goal && goal.tagName === "DETAILS") goal.open = true;
  };
  unfold();
  addEventListener("hashchange", unfold);

  // On paper everything stands open.
  const folded = () => [...document.querySelectorAll("details:not([open])")];
  let unfolded = [];
  addEventListener("beforeprint", () => {
    unfolded = folded();
    unfolded.forEach((one) => { one.open = true; });
  });
  addEventListener("afterprint", () => unfolded.forEach((one) => { one.open = false; }));

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    const value = (row, place) => row.cells[place].dataset.sort;
    heads.forEach((head, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") !== "descending";
        const rows = [...table.tBodies[0].rows].sort((one, other) => {
          const [a, b] = [value(one, place), value(other, place)];
          if (a === "" || b === "") return (a === "") - (b === ""); // what is missing comes last
          const order = isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
          return down ? -order : order;
        });
        heads.forEach((one) => one.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        table.tBodies[0].append(...rows);
      });
    });
  }
})();
