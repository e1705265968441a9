// Accessible tables whose rows are updated in place.

import { element, keep, say, set } from './dom'

export interface Cell {
  text: string
  /** Bar next to the text: length in percent, and tone. */
  bar?: { percent: number; tone: Tone }
  tone?: Tone
}

export type Tone = 'plain' | 'good' | 'warn' | 'bad' | 'quiet'

export interface Column<Item> {
  title: string
  /** Numbers are aligned to the right. */
  number?: boolean
  cell: (item: Item) => Cell | string
}

interface Row {
  root: HTMLElement
  cells: HTMLElement[]
}

export class Table<Item> {
  private readonly body = element('tbody')
  private readonly rows = new Map<string, Row>()
  private readonly empty: HTMLElement

  constructor(
    table: HTMLElement,
    caption: string,
    private readonly key: (item: Item) => string,
    private readonly columns: readonly Column<Item>[],
    nothing: string,
  ) {
    const heads = columns.map((column) =>
      element('th', { scope: 'col', class: column.number ? 'number' : null }, column.title),
    )
    const head = element('thead', {}, element('tr', {}, ...heads))
    this.empty = element('tfoot', {}, element('tr', {}, element('td', { colspan: columns.length, class: 'nothing' }, nothing)))
    table.append(element('caption', {}, caption), head, this.body, this.empty)
  }

  show(items: readonly Item[]): void {
    keep(this.body, this.rows, items, this.key, () => this.make(), (row, item) => { this.update(row, item) })
    set(this.empty, { hidden: items.length > 0 })
  }

  private make(): Row {
    const cells = this.columns.map((column, place) =>
      place === 0
        ? element('th', { scope: 'row' })
        : element('td', { class: column.number ? 'number' : null, 'data-title': column.title }),
    )
    return { root: element('tr', {}, ...cells), cells }
  }

  private update(row: Row, item: Item): void {
    this.columns.forEach((column, place) => {
      const target = row.cells[place]
      if (target === undefined) return
      const found = column.cell(item)
      const cell = typeof found === 'string' ? { text: found } : found
      fill(target, cell)
    })
  }
}

function fill(target: HTMLElement, cell: Cell): void {
  set(target, { 'data-tone': cell.tone ?? null })
  if (cell.bar === undefined) {
    say(target, cell.text)
    return
  }
  let bar = target.querySelector<HTMLElement>('.bar')
  if (bar === null) {
    bar = element('span', { class: 'bar', 'aria-hidden': 'true' }, element('span'))
    target.replaceChildren(bar, element('span', { class: 'value' }))
  }
  const inner = bar.firstElementChild as HTMLElement
  inner.style.width = `${Math.min(100, Math.max(0, cell.bar.percent))}%`
  set(bar, { 'data-tone': cell.bar.tone })
  const value = target.querySelector('.value')
  if (value !== null) say(value, cell.text)
}
