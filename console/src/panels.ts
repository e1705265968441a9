// Contents of the tables, and the thresholds at which a value is highlighted.

import { byId, element, keep, say, set } from './dom'
import { dollars, milliseconds, NONE, percent, plural, rate, words } from './format'
import type { ClassState, EndpointState, PoolState, Rejection, State, TenantState } from './state'
import { type Cell, Table, type Tone } from './table'

export function fullness(value: number): Tone {
  return value >= 95 ? 'bad' : value >= 80 ? 'warn' : 'good'
}

export function ttftCell(state: ClassState): Cell {
  const p99 = state.ttft_ms?.p99 ?? null
  const target = state.ttft_target_ms
  if (p99 === null || target === null) return { text: milliseconds(p99) }
  return { text: milliseconds(p99), tone: p99 > target ? 'bad' : 'good' }
}

/** State of an endpoint. Leaving takes precedence over its current state. */
export function endpointState(endpoint: EndpointState): Cell {
  if (endpoint.leaving) return { text: 'leaving', tone: 'quiet' }
  const drained = endpoint.drained ? ', drained' : ''
  if (endpoint.suspected) return { text: `${endpoint.state}, suspected${drained}`, tone: 'bad' }
  if (endpoint.probe_fails && endpoint.state !== 'warming') return { text: `${endpoint.state}, probe fails${drained}`, tone: 'bad' }
  const tones: Record<string, Tone> = { ready: drained ? 'quiet' : 'good', warming: 'warn', trial: 'warn', ejected: 'bad' }
  return { text: `${endpoint.state}${drained}`, tone: tones[endpoint.state] ?? 'plain' }
}

/** Speed of the endpoint compared with its configured speed. */
export function slowness(endpoint: EndpointState): Cell {
  const slow = endpoint.speed_percent
  if (slow < 120) return { text: slow < 80 ? 'faster' : 'as configured', tone: 'quiet' }
  return { text: `${(slow / 100).toFixed(1)} × slower`, tone: slow >= 200 ? 'bad' : 'warn' }
}

/** A request that the client cancelled is not a problem. */
export function rejectionTone(rejection: Rejection): Tone {
  return rejection.per_min === 0 ? 'quiet' : rejection.unsuccessful ? 'bad' : 'plain'
}

/** Text for a large fleet, of which the table shows only the endpoints with the most problems. */
export function leftOut(state: State): string {
  const more = state.endpoints_known - state.endpoints.length
  return more > 0 ? `and ${more.toLocaleString('en-US')} more, in the same state as the last one or a better state` : ''
}

export class Panels {
  private readonly classes = new Table<ClassState>(byId('classes'), 'Classes, over the last 10 seconds', (each) => each.class, [
    { title: 'Class', cell: (each) => each.class },
    { title: 'Waiting', number: true, cell: (each) => ({ text: each.queued.toLocaleString('en-US'), tone: each.queued ? 'plain' : 'quiet' }) },
    { title: 'Requests/s', number: true, cell: (each) => rate(each.arrived_per_s) },
    { title: 'Served/s', number: true, cell: (each) => rate(each.completed_per_s) },
    { title: 'Rejected/s', number: true, cell: (each) => ({ text: rate(each.rejected_per_s), tone: each.rejected_per_s ? 'bad' : 'quiet' }) },
    { title: 'TTFT p50', number: true, cell: (each) => milliseconds(each.ttft_ms?.p50 ?? null) },
    { title: 'p99', number: true, cell: ttftCell },
    { title: 'Target', number: true, cell: (each) => ({ text: milliseconds(each.ttft_target_ms), tone: 'quiet' }) },
    { title: 'Duration p99', number: true, cell: (each) => milliseconds(each.duration_ms?.p99 ?? null) },
    { title: 'Goodput', number: true, cell: (each) => ({ text: percent(each.goodput_percent), tone: each.goodput_percent === null ? 'quiet' : each.goodput_percent < 90 ? 'bad' : 'good' }) },
  ], 'No class is configured.')

  private readonly endpoints = new Table<EndpointState>(byId('endpoints'), 'Current state of each endpoint', (each) => each.id, [
    { title: 'Endpoint', cell: (each) => each.id },
    { title: 'State', cell: endpointState },
    { title: 'In flight', cell: (each) => share(each.in_flight, each.in_flight_max) },
    { title: 'KV cache', cell: (each) => each.kv_percent === null ? { text: NONE, tone: 'quiet' } : { text: percent(each.kv_percent), bar: { percent: each.kv_percent, tone: fullness(each.kv_percent) } } },
    { title: 'Running', number: true, cell: (each) => each.running === null ? NONE : String(each.running) },
    { title: 'Engine queue', number: true, cell: (each) => each.waiting === null ? NONE : { text: String(each.waiting), tone: each.waiting ? 'warn' : 'quiet' } },
    { title: 'Speed', number: true, cell: slowness },
  ], 'No endpoint is known; run `headgate doctor`.')

  private readonly tenants = new Table<TenantState>(byId('tenants'), 'The busiest tenants', (each) => each.tenant, [
    { title: 'Tenant', cell: (each) => each.tenant },
    { title: 'Waiting', number: true, cell: (each) => ({ text: each.queued.toLocaleString('en-US'), tone: each.queued ? 'plain' : 'quiet' }) },
    { title: 'In flight', number: true, cell: (each) => each.in_flight.toLocaleString('en-US') },
    { title: 'Requests/s', number: true, cell: (each) => rate(each.arrived_per_s) },
    { title: 'Cost/h', number: true, cell: (each) => ({ text: dollars(each.usd_per_hour), tone: each.usd_per_hour === null ? 'quiet' : 'plain' }) },
  ], 'No requests in the last minute.')

  private readonly rejections = new Table<Rejection>(byId('rejections'), 'Requests that did not complete, by reason', (each) => each.outcome, [
    { title: 'Reason', cell: (each) => words(each.outcome) },
    { title: 'Last minute', number: true, cell: (each) => ({ text: each.per_min.toLocaleString('en-US'), tone: rejectionTone(each) }) },
    { title: 'Total', number: true, cell: (each) => each.total.toLocaleString('en-US') },
  ], 'All requests have completed.')

  private readonly pools = new PoolCards()
  private readonly figures = new Figures()

  show(state: State): void {
    this.classes.show(state.classes)
    this.endpoints.show(state.endpoints)
    say(byId('endpoints-more'), leftOut(state))
    // An island has its own queue.
    set(byId('classes-whose'), { hidden: state.gateway.cell === null || state.gateway.cell.mode === 'island' })
    this.tenants.show(state.tenants)
    this.rejections.show(state.rejections)
    this.pools.show(state.pools)
    this.figures.show(state)
  }
}

function share(part: number, whole: number): Cell {
  const percent = whole ? (100 * part) / whole : 0
  return { text: `${part} of ${whole}`, bar: { percent, tone: percent >= 100 ? 'warn' : 'good' } }
}

/** Degradation level of a pool, from 0 to 6. */
export function degradation(level: number): string {
  return level === 0 ? 'no degradation' : `degradation level ${level} of 6`
}

export function poolFacts(pool: PoolState): string[] {
  const facts = [`${pool.ready} ready`]
  if (pool.warming) facts.push(`${pool.warming} warming`)
  if (pool.desired !== null) facts.push(`${pool.desired} desired`)
  if (pool.demand_to_capacity_ratio !== null) facts.push(`demand ${Math.round(pool.demand_to_capacity_ratio * 100)} % of capacity`)
  facts.push(degradation(pool.level))
  if (pool.shed_percent) facts.push(`sheds ${percent(pool.shed_percent)}`)
  return facts
}

class PoolCards {
  private readonly root = byId('pools')
  private readonly kept = new Map<string, { root: HTMLElement; facts: HTMLElement }>()

  show(pools: readonly PoolState[]): void {
    keep(this.root, this.kept, pools, (pool) => pool.pool, (pool) => {
      const facts = element('span', { class: 'facts' })
      return { root: element('p', { class: 'pool' }, element('strong', {}, pool.pool), ' ', facts), facts }
    }, (kept, pool) => {
      say(kept.facts, poolFacts(pool).join(' · '))
      set(kept.root, { 'data-tone': pool.ready === 0 ? 'bad' : pool.level || pool.shed_percent ? 'warn' : null })
    })
  }
}

class Figures {
  private readonly root = byId('figures')
  private readonly kept = new Map<string, { root: HTMLElement; value: HTMLElement }>()

  show(state: State): void {
    keep(this.root, this.kept, glance(state), ([name]) => name, ([name]) => {
      const value = element('dd')
      return { root: element('div', {}, element('dt', {}, name), value), value }
    }, (kept, [, value, tone]) => {
      say(kept.value, value)
      set(kept.root, { 'data-tone': tone })
    })
  }
}

/** Summary values with their tones. */
export function glance(state: State): [string, string, Tone][] {
  const queued = state.classes.reduce((sum, each) => sum + each.queued, 0)
  const served = state.classes.reduce((sum, each) => sum + each.completed_per_s, 0)
  const rejected = state.classes.reduce((sum, each) => sum + each.rejected_per_s, 0)
  const ready = state.pools.reduce((sum, each) => sum + each.ready, 0)
  const known = state.endpoints_known
  const cost = state.tenants.reduce<number | null>((sum, each) => each.usd_per_hour === null ? sum : (sum ?? 0) + each.usd_per_hour, null)
  return [
    ['Served', `${rate(served)}/s`, 'plain'],
    ['Waiting', queued.toLocaleString('en-US'), 'plain'],
    ['Rejected', `${rate(rejected)}/s`, rejected > 0 ? 'bad' : 'plain'],
    ['Ready', known ? `${ready} of ${known}` : '0', known && ready < known ? 'warn' : known ? 'plain' : 'bad'],
    ['Degradation', state.degradation_level === 0 ? '0' : `${state.degradation_level} of 6`, state.degradation_level ? 'warn' : 'plain'],
    ['Cost', cost === null ? NONE : `${dollars(cost)}/h`, 'plain'],
  ]
}

export function about(state: State): string {
  const { name, version, uptime_s: uptime, config_hash: hash, draining, cell } = state.gateway
  const parts = [name, `version ${version}`, `up ${upFor(uptime)}`, `configuration ${hash.slice(0, 8)}`]
  if (cell !== null) {
    const led = cell.is_leader ? 'schedules its cell' : cell.scheduler === null ? 'no scheduler known' : `scheduled by ${cell.scheduler.name}`
    parts.push(cell.mode === 'island' ? 'island of its cell' : led)
  }
  if (draining) parts.push('draining')
  return parts.join(' · ')
}

/** URL of the scheduler's console, which shows the queues and endpoints of the cell. */
export function schedulerLink(state: State): string | null {
  const cell = state.gateway.cell
  const admin = cell === null || cell.is_leader ? '' : (cell.scheduler?.admin ?? '')
  return /^[\w.:[\]-]+$/.test(admin) ? `http://${admin}/console/` : null
}

function upFor(seconds: number): string {
  if (seconds < 60) return plural(Math.floor(seconds), 'second')
  if (seconds < 3600) return plural(Math.floor(seconds / 60), 'minute')
  if (seconds < 86_400) return plural(Math.floor(seconds / 3600), 'hour')
  return plural(Math.floor(seconds / 86_400), 'day')
}
