// Functions that write to the page. Values are always written as text, because names come from callers.

type Attributes = Record<string, string | number | boolean | null>

export function element<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  attributes: Attributes = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[Tag] {
  const made = document.createElement(tag)
  set(made, attributes)
  made.append(...children)
  return made
}

export function set(target: Element, attributes: Attributes): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === false) {
      if (target.hasAttribute(name)) target.removeAttribute(name)
    } else {
      const text = value === true ? '' : String(value)
      if (target.getAttribute(name) !== text) target.setAttribute(name, text)
    }
  }
}

/** Writes only changed text, so that updates do not disturb selections and screen readers. */
export function say(target: Node, text: string): void {
  if (target.textContent !== text) target.textContent = text
}

export function byId(id: string): HTMLElement {
  const found = document.getElementById(id)
  if (found === null) throw new Error(`the page has no #${id}`)
  return found
}

export function icon(paths: string): SVGSVGElement {
  const space = 'http://www.w3.org/2000/svg'
  const made = document.createElementNS(space, 'svg')
  set(made, { viewBox: '0 0 24 24', 'aria-hidden': 'true', class: 'icon' })
  const path = document.createElementNS(space, 'path')
  set(path, { d: paths })
  made.append(path)
  return made
}

/** Keeps one child of `parent` for each item, in the order of the items. Existing elements are reused. */
export function keep<Item, Kept extends { root: HTMLElement }>(
  parent: Element,
  kept: Map<string, Kept>,
  items: readonly Item[],
  key: (item: Item) => string,
  make: (item: Item) => Kept,
  update: (child: Kept, item: Item) => void,
): void {
  const wanted = new Set<string>()
  let before: ChildNode | null = parent.firstChild
  for (const item of items) {
    const name = key(item)
    if (wanted.has(name)) continue
    wanted.add(name)
    let child = kept.get(name)
    if (child === undefined) {
      child = make(item)
      kept.set(name, child)
    }
    update(child, item)
    if (before === child.root) before = before.nextSibling
    else parent.insertBefore(child.root, before)
  }
  for (const [name, child] of kept) {
    if (!wanted.has(name)) {
      child.root.remove()
      kept.delete(name)
    }
  }
}
