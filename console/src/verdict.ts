// The verdict panel. The cause is shown as a word, an icon and a colour, each of which is sufficient.

import { byId, element, icon, keep, say, set } from './dom'
import { lasting, words } from './format'
import type { Affected, State, Verdict } from './state'

interface Look {
  word: string
  icon: string
}

const LOOKS: Record<string, Look> = {
  none: { word: 'No verdict yet', icon: 'M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18M8 12h.01M12 12h.01M16 12h.01' },
  healthy: { word: 'Healthy', icon: 'M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18M8 12.5l2.8 2.8L16 9.7' },
  compute: { word: 'Compute', icon: 'M7 7h10v10H7zM10 2v5m4-5v5m-4 10v5m4-5v5M2 10h5m-5 4h5m10-4h5m-5 4h5' },
  memory: { word: 'Memory', icon: 'M12 3l9 4.5-9 4.5-9-4.5zM3 12l9 4.5 9-4.5M3 16.5L12 21l9-4.5' },
  scheduler: { word: 'Scheduler', icon: 'M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18M12 7v5l3.5 2.5' },
  upstream: { word: 'Upstream', icon: 'M9 2v6m6-6v6M6 8h12v3a6 6 0 0 1-12 0zM12 17v5' },
  client: { word: 'Client', icon: 'M9 11a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7M2.5 20a6.5 6.5 0 0 1 13 0M16 4.5a3.5 3.5 0 0 1 0 6M18 14.5a6.5 6.5 0 0 1 3.5 5.5' },
  configuration: { word: 'Configuration', icon: 'M4 6h9m5 0h2M4 12h2m5 0h9M4 18h9m5 0h2M15.5 3.8v4.4M8.5 9.8v4.4M15.5 15.8v4.4' },
}
const UNKNOWN: Look = { word: 'Unknown', icon: 'M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18M12 7v6M12 16.5h.01' }

export function look(cause: string): Look {
  return LOOKS[cause] ?? { ...UNKNOWN, word: words(cause) }
}

/** Verdicts that are not healthy, in the given order. */
export function wrong(verdicts: readonly Verdict[]): Verdict[] {
  return verdicts.filter((verdict) => verdict.cause !== 'healthy')
}

/** Link to the runbook, which the admin listener serves. */
export function runbookLink(path: string): string | null {
  const name = /^docs\/operations\/runbooks\/([a-z0-9_-]+)\.md$/.exec(path)?.[1]
  return name === undefined ? null : `../docs/operations/runbooks/${name}`
}

export function whom(affected: Affected): string {
  const names = [affected.tenant === null ? '' : `tenant ${affected.tenant}`, affected.class === null ? '' : `class ${affected.class}`]
  return names.filter((name) => name !== '').join(', ') || 'all'
}

/** Key of the announcement. It changes with the incidents and their pools, but not with the numbers in a sentence. */
export function matter(bad: readonly Verdict[], cause: string): string {
  return [cause, ...bad.map((each) => JSON.stringify([each.pool, each.cause, each.incident])).sort()].join(' ')
}

export class VerdictPanel {
  private readonly root = byId('verdict')
  private readonly badge = element('div', { class: 'badge' })
  private readonly word = element('h2', { id: 'verdict-title' })
  private readonly since = element('p', { class: 'since' })
  private readonly sentence = element('p', { class: 'sentence' })
  private readonly heard = element('p', { class: 'heard', 'aria-live': 'polite' })
  private readonly details = new Details()
  private readonly others = new Others()
  private cause = ''
  private announced = ''

  constructor() {
    const head = element('div', { class: 'verdict-head' }, this.word, this.since)
    const body = element('div', { class: 'verdict-body' }, head, this.sentence, this.details.root, this.others.root)
    this.root.append(this.badge, body, this.heard)
    this.show(null)
  }

  show(state: State | null): void {
    const bad = state === null ? [] : wrong(state.verdicts)
    const first = bad[0]
    const cause = first?.cause ?? (state === null || state.verdicts.length === 0 ? 'none' : 'healthy')
    set(this.root, { 'data-cause': cause, 'data-tone': cause === 'none' ? 'none' : first === undefined ? 'good' : 'bad' })
    if (cause !== this.cause) this.badge.replaceChildren(icon(look(cause).icon))
    this.cause = cause
    say(this.word, look(cause).word)
    say(this.since, first === undefined ? '' : sinceText(first))
    say(this.sentence, first?.sentence ?? quiet(state))
    this.details.show(first)
    this.others.show(bad.slice(1))
    const title = first === undefined ? 'Headgate' : `${look(cause).word} · Headgate`
    if (document.title !== title) document.title = title
    this.announce(matter(bad, cause), first)
  }

  private announce(present: string, first: Verdict | undefined): void {
    if (present === this.announced) return
    this.announced = present
    const what = first === undefined ? '' : `${words(first.incident)}, `
    say(this.heard, `${this.word.textContent ?? ''}: ${what}${this.sentence.textContent ?? ''}`)
  }
}

/** Action, evidence and affected requests. Elements are reused, so that a text selection survives an update. */
class Details {
  readonly root = element('div', { class: 'details' })
  private readonly action = element('p', { class: 'action' })
  private readonly link = element('a')
  private readonly page = element('p', { class: 'runbook' })
  private readonly evidence = new Lines()
  private readonly affected = new Lines()
  private readonly blocks = [
    block('First action', this.action, this.page), block('Evidence', this.evidence.root), block('Who is affected', this.affected.root),
  ] as const

  show(verdict: Verdict | undefined): void {
    set(this.root, { hidden: verdict === undefined })
    if (verdict === undefined) return
    if (this.root.firstChild === null) this.root.append(...this.blocks)
    set(this.action, { hidden: verdict.action === '' })
    fill(this.action, commandParts(verdict.action).map((part) => ({ text: part.text, tag: part.command ? 'code' : 'span' })))
    this.showRunbook(verdict)
    this.evidence.show(verdict.evidence.map((fact) => [{ text: fact, tag: 'span' }]))
    this.affected.show(verdict.affected.map((each) => [{ text: whom(each), tag: 'strong' }, { text: `: ${each.effect}`, tag: 'span' }]))
    set(this.blocks[1], { hidden: verdict.evidence.length === 0 })
    set(this.blocks[2], { hidden: verdict.affected.length === 0 })
  }

  private showRunbook(verdict: Verdict): void {
    const href = runbookLink(verdict.runbook)
    if (href === null) {
      say(this.page, verdict.runbook)
      return
    }
    set(this.link, { href })
    say(this.link, `Runbook: ${words(verdict.incident)}`)
    if (this.link.parentNode !== this.page) this.page.replaceChildren(this.link)
  }
}

/** The other verdicts that are not healthy. */
class Others {
  readonly root = element('ul', { class: 'others' })
  private readonly kept = new Map<string, { root: HTMLElement; text: HTMLElement }>()

  show(verdicts: readonly Verdict[]): void {
    keep(this.root, this.kept, verdicts, (each) => JSON.stringify([each.pool, each.cause, each.incident]), (each) => {
      const text = element('span')
      return { root: element('li', { 'data-cause': each.cause }, icon(look(each.cause).icon), text), text }
    }, (kept, each) => {
      const where = each.pool === null ? '' : `, pool ${each.pool}`
      fill(kept.text, [
        { text: `${look(each.cause).word}: ${words(each.incident)}${where}`, tag: 'strong' }, { text: `. ${each.sentence}`, tag: 'span' },
      ])
    })
  }
}

interface Part {
  text: string
  tag: 'span' | 'strong' | 'code'
}

/** List items, identified by their position, so that an item is reused when its numbers change. */
class Lines {
  readonly root = element('ul')
  private readonly kept = new Map<string, { root: HTMLElement }>()

  show(lines: readonly Part[][]): void {
    const placed = lines.map((parts, place) => ({ parts, place }))
    keep(this.root, this.kept, placed, (line) => String(line.place), () => ({ root: element('li') }), (kept, line) => { fill(kept.root, line.parts) })
  }
}

/** Writes the parts into the existing elements if these have the same tags. */
function fill(target: HTMLElement, parts: readonly Part[]): void {
  const there = Array.from(target.children)
  const fits = there.length === parts.length && parts.every((part, place) => there[place]?.localName === part.tag)
  if (!fits) target.replaceChildren(...parts.map((part) => element(part.tag)))
  parts.forEach((part, place) => {
    const child = target.children[place]
    if (child !== undefined) say(child, part.text)
  })
}

function quiet(state: State | null): string {
  if (state === null) return 'Waiting for the gateway.'
  if (state.verdicts.length === 0) return 'The gateway is learning the normal load. It reports a verdict after some traffic.'
  return state.verdicts[0]?.sentence || 'No problem detected.'
}

function sinceText(verdict: Verdict): string {
  const where = verdict.pool === null ? 'whole gateway' : `pool ${verdict.pool}`
  return `${words(verdict.incident)} · ${where} · for ${lasting(verdict.since_s)}`
}

/** Text between backticks is a command. */
export function commandParts(text: string): { text: string; command: boolean }[] {
  const parts = text.split('`')
  // Without a closing backtick there is no command.
  if (parts.length % 2 === 0) return [{ text, command: false }]
  return parts.map((part, place) => ({ text: part, command: place % 2 === 1 })).filter((part) => part.text !== '')
}

function block(title: string, ...content: Node[]): HTMLElement {
  return element('div', { class: 'block' }, element('h3', {}, title), ...content)
}
