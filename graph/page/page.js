"use strict";
// One step is selected everywhere at once: in the graph, the timelines, the memory map and the table.
(() => {
	const steps = JSON.parse(document.getElementById("steps").textContent);
	const details = document.getElementById("details");
	const rows = [...document.querySelectorAll("tbody tr")];
	const find = document.getElementById("find");
	const byStep = steps.map(() => []);
	for (const e of document.querySelectorAll("[data-step]")) byStep[+e.dataset.step].push(e);
	for (const e of document.querySelectorAll("[data-steps]")) for (const s of e.dataset.steps.split(" ")) byStep[+s].push(e);
	let selected = -1;

	function select(i, from) {
		if (!steps.length) return;
		i = Math.max(0, Math.min(steps.length - 1, i));
		if (selected >= 0) for (const e of byStep[selected]) e.classList.remove("on");
		selected = i;
		for (const e of byStep[i]) {
			e.classList.add("on");
			const pane = e.closest(".pane");
			if (pane && pane !== from && !e.dataset.steps) show(pane, e);
		}
		details.textContent = steps[i];
		stop();
	}

	// stop makes one row a stop of Tab: the selected one or, where the search hides it, the first that it leaves.
	function stop() {
		const at = selected >= 0 && !rows[selected].hidden ? selected : rows.findIndex((r) => !r.hidden);
		rows.forEach((r, i) => { r.tabIndex = i === at ? 0 : -1; });
	}

	// show scrolls within a pane alone: the page itself stays where the reader is.
	function show(pane, e) {
		const p = pane.getBoundingClientRect(), r = e.getBoundingClientRect();
		if (r.top < p.top + 24) pane.scrollTop -= p.top + 24 - r.top;
		if (r.bottom > p.bottom) pane.scrollTop += r.bottom - p.bottom;
		if (r.left < p.left) pane.scrollLeft -= p.left - r.left;
		if (r.right > p.right) pane.scrollLeft += Math.min(r.right - p.right, r.left - p.left);
	}

	// visible steps are those whose rows the search leaves.
	const next = (i, by) => {
		for (let j = i + by; j >= 0 && j < rows.length; j += by) if (!rows[j].hidden) return j;
		return i;
	};

	document.addEventListener("click", (event) => {
		const e = event.target.closest("[data-step],[data-steps]");
		if (!e || event.target.closest("a")) return;
		select(+(e.dataset.step ?? e.dataset.steps.split(" ")[0]), e.closest(".pane"));
	});

	document.addEventListener("keydown", (event) => {
		if (event.ctrlKey || event.metaKey || event.altKey) return;
		const typing = event.target === find;
		const pane = event.target.closest ? event.target.closest(".pane") : null;
		const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
		if (event.key === "/" && !typing) {
			find.focus();
		} else if (event.key === "Escape" && typing) {
			find.value = "";
			filter();
			find.blur();
		} else if (event.key === "Enter" && typing) {
			const first = rows.findIndex((r) => !r.hidden);
			if (first >= 0) { select(first); rows[first].focus(); }
		} else if (pane && (by || event.key === "Home" || event.key === "End")) {
			const to = event.key === "Home" ? next(-1, 1) : event.key === "End" ? next(rows.length, -1) : next(selected, by);
			if (!rows[to] || rows[to].hidden) return; // the search leaves none
			select(to);
			if (event.target.closest("tr")) rows[to].focus({ preventScroll: true });
		} else if (event.target.closest && event.target.closest("tr") && (event.key === "Enter" || event.key === " ")) {
			select(+event.target.closest("tr").dataset.step);
		} else {
			return;
		}
		event.preventDefault();
	});

	function filter() {
		const want = find.value.toLowerCase();
		rows.forEach((r, i) => { r.hidden = !steps[i].toLowerCase().includes(want); });
		stop();
	}
	find.addEventListener("input", filter);
	select(0);
	document.body.dataset.ready = String(steps.length);
})();
