// One tooltip for everything that carries data-tip: pointer, touch and keyboard. Text only.
(() => {
  const tip = document.getElementById("tip");
  let shown = null;
  const place = (x, y) => {
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, x + 14), window.innerWidth - box.width - 8);
    const below = y + 18 + box.height < window.innerHeight - 8;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${below ? y + 18 : Math.max(8, y - box.height - 12)}px`;
  };
  const show = (element, x, y) => {
    if (element !== shown) {
      tip.textContent = element.dataset.tip;
      tip.hidden = false;
      shown = element;
    }
    place(x, y);
  };
  const hide = () => {
    tip.hidden = true;
    shown = null;
  };
  const owner = (event) => event.target instanceof Element && event.target.closest("[data-tip]");
  for (const kind of ["pointermove", "pointerdown"]) {
    document.addEventListener(kind, (event) => {
      const element = owner(event);
      if (element) show(element, event.clientX, event.clientY);
      else hide();
    });
  }
  document.addEventListener("focusin", (event) => {
    const element = owner(event);
    if (!element || !element.matches(":focus-visible")) return;
    const box = element.getBoundingClientRect();
    show(element, box.left, box.bottom - 8);
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", hide, { passive: true, capture: true });
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  // Paper cannot unfold.
  window.addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("details")) part.open = true;
  });
})();
