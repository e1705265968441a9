// Recent slow and failed requests, with the time that each stage took.

import { byId, element, keep, say, set } from './dom'
import { clock, milliseconds, words } from './format'
import type { RecentRequest, StageTime } from './state'

export const STAGES = ['ingress', 'auth', 'classify', 'queue', 'route', 'connect', 'prefill', 'decode', 'post_processing', 'settle']

export interface Slice {
  stage: string
  left: number
  width: number
  over: boolean
}

/** Position of each stage in the bar, in percent of the total. */
export function slices(stages: readonly StageTime[]): Slice[] {
  const whole = stages.reduce((sum, each) => sum + each.ms, 0)
  if (whole <= 0) return []
  let left = 0
  return stages.filter((each) => each.ms > 0).map((each) => {
    const width = (100 * each.ms) / whole
    const slice = { stage: each.stage, left, width, over: isOver(each) }
    left += width
    return slice
  })
}

export function isOver(stage: StageTime): boolean {
  return stage.budget_ms !== null && stage.ms > stage.budget_ms
}

/** Text with the longest stage and the stages over their budget. */
export function summary(request: RecentRequest): string {
  const longest = [...request.stages].sort((a, b) => b.ms - a.ms)[0]
  const over = request.stages.filter(isOver).map((each) => words(each.stage))
  const most = longest === undefined || longest.ms === 0 ? '' : `most in ${words(longest.stage)}`
  return [most, over.length ? `over budget: ${over.join(', ')}` : ''].filter(Boolean).join('; ')
}

export function explainCommand(requestId: string): string {
  return /^[A-Za-z0-9_-]+$/.test(requestId) ? `headgate explain ${requestId}` : ''
}

/** Length of a bar relative to the slowest request, in percent. It has a minimum so that it stays visible. */
export function barLength(totalMs: number, slowestMs: number): number {
  return slowestMs > 0 ? Math.max(2, (100 * totalMs) / slowestMs) : 2
}

interface Row {
  root: HTMLDetailsElement
  bar: HTMLElement
}

export class RecentPanel {
  private readonly root = byId('recent')
  private readonly kept = new Map<string, Row>()
  private readonly nothing = element('p', { class: 'nothing' }, 'None so far.')

  constructor() {
    byId('stages').replaceChildren(...STAGES.map((stage) =>
      element('li', {}, element('span', { class: 'swatch', 'data-stage': stage, 'aria-hidden': 'true' }), words(stage)),
    ))
    this.root.after(this.nothing)
  }

  show(requests: readonly RecentRequest[]): void {
    const slowest = Math.max(0, ...requests.map((each) => each.total_ms))
    // Finished requests do not change, but the slowest one that they are compared with does.
    keep(this.root, this.kept, requests, (each) => each.request_id, make, (row, each) => {
      row.bar.style.width = `${barLength(each.total_ms, slowest).toFixed(1)}%`
    })
    set(this.nothing, { hidden: requests.length > 0 })
  }
}

function make(request: RecentRequest): Row {
  const outcome = element('span', { class: 'outcome', 'data-tone': request.outcome === 'completed' ? 'warn' : 'bad' })
  say(outcome, request.outcome === 'completed' ? 'slow' : words(request.outcome))
  const stagebar = bar(request.stages)
  const head = element('summary', {},
    element('span', { class: 'when' }, clock(request.at)),
    outcome,
    element('span', { class: 'who' }, `${request.tenant ?? 'no tenant'} / ${request.class ?? 'no class'}`),
    element('span', { class: 'total' }, milliseconds(request.total_ms)),
    stagebar,
  )
  return { root: element('details', {}, head, details(request)), bar: stagebar }
}

function bar(stages: readonly StageTime[]): HTMLElement {
  const made = element('span', { class: 'stagebar', 'aria-hidden': 'true' })
  for (const slice of slices(stages)) {
    const part = element('span', { 'data-stage': slice.stage, 'data-over': slice.over })
    part.style.left = `${slice.left}%`
    part.style.width = `${slice.width}%`
    made.append(part)
  }
  return made
}

function details(request: RecentRequest): HTMLElement {
  const body = element('div', { class: 'request' })
  const told = summary(request)
  if (told) body.append(element('p', {}, `${told[0]?.toUpperCase() ?? ''}${told.slice(1)}.`))
  if (request.stages.length) body.append(stageTable(request.stages))
  const command = explainCommand(request.request_id)
  if (command) body.append(copyLine(command))
  return body
}

function stageTable(stages: readonly StageTime[]): HTMLElement {
  const rows = stages.map((each) => element('tr', {},
    element('th', { scope: 'row' }, element('span', { class: 'swatch', 'data-stage': each.stage, 'aria-hidden': 'true' }), words(each.stage)),
    element('td', { class: 'number', 'data-tone': isOver(each) ? 'bad' : null }, milliseconds(each.ms)),
    element('td', { class: 'number', 'data-tone': 'quiet' }, each.budget_ms === null ? 'no budget' : `of ${milliseconds(each.budget_ms)}`),
  ))
  const head = element('thead', {}, element('tr', {},
    element('th', { scope: 'col' }, 'Stage'),
    element('th', { scope: 'col', class: 'number' }, 'Took'),
    element('th', { scope: 'col', class: 'number' }, 'Budget'),
  ))
  return element('table', { class: 'stagetable' }, element('caption', {}, 'Time by stage'), head, element('tbody', {}, ...rows))
}

function copyLine(command: string): HTMLElement {
  const button = element('button', { type: 'button' }, 'Copy')
  button.addEventListener('click', () => { void copy(command, button) })
  return element('p', { class: 'copy' }, element('code', {}, command), ' ', button)
}

async function copy(command: string, button: HTMLElement): Promise<void> {
  try {
    await navigator.clipboard.writeText(command)
    say(button, 'Copied')
  } catch {
    // Browsers deny pages without TLS access to the clipboard. The command can still be selected and copied.
    say(button, 'Select and copy')
  }
}
