// State fields are shown with the right texts and tones.
import { describe, expect, it } from 'vitest'

import { linkText } from '../src/connection'
import { about, endpointState, degradation, fullness, glance, leftOut, poolFacts, rejectionTone, schedulerLink, slowness, ttftCell } from '../src/panels'
import { barLength, explainCommand, isOver, slices, summary } from '../src/recent'
import { type ClassState, type EndpointState, parseHistory, parseState, type RecentRequest, type State } from '../src/state'
import { commandParts, look, matter, runbookLink, whom, wrong } from '../src/verdict'

const CLASS: ClassState = {
  class: 'interactive', queued: 2, arrived_per_s: 3, completed_per_s: 2.5, rejected_per_s: 0.5,
  ttft_ms: { p50: 100, p95: 200, p99: 900 }, duration_ms: null, ttft_target_ms: 1000, goodput_percent: 99,
}
const ENDPOINT: EndpointState = {
  id: 'e1', pool: 'small', state: 'ready', in_flight: 1, in_flight_max: 8, kv_percent: 10, running: 1, waiting: 0,
  speed_percent: 100, suspected: false, leaving: false, drained: false, probe_fails: false,
}
const STATE: State = {
  version: 1, at: '',
  gateway: { name: 'g:8080', version: '1.2', uptime_s: 7300, config_hash: '0123456789', draining: false, cell: null },
  verdicts: [], classes: [CLASS], tenants: [], rejections: [], latency_points: [], recent: [], degradation_level: 0,
  pools: [{ pool: 'small', level: 0, shed_percent: 0, demand_to_capacity_ratio: null, ready: 1, warming: 0, desired: null }],
  endpoints: [ENDPOINT, { ...ENDPOINT, id: 'e2', state: 'warming' }], endpoints_known: 2,
}
const REQUEST: RecentRequest = {
  request_id: 'req_1', tenant: 'acme', class: 'interactive', outcome: 'completed', at: '', total_ms: 400,
  stages: [{ stage: 'queue', ms: 300, budget_ms: 200 }, { stage: 'prefill', ms: 0, budget_ms: 10 }, { stage: 'decode', ms: 100, budget_ms: null }],
}

describe('the state', () => {
  it('is accepted only in the known version', () => {
    expect(parseState('{"version":2}')).toBeNull()
    expect(parseState('no json')).toBeNull()
    expect(parseHistory('null')).toBeNull()
    expect(parseState(JSON.stringify(STATE))).toEqual(STATE)
  })
})

describe('the verdict', () => {
  it('has a word for unknown causes', () => {
    expect([look('healthy').word, look('odd_cause').word]).toEqual(['Healthy', 'odd cause'])
  })

  it('omits healthy verdicts', () => {
    const verdict = { pool: null, cause: 'memory', incident: 'kv_exhausted', since_s: 1, sentence: '', evidence: [], affected: [], action: '', runbook: '' }
    expect(wrong([{ ...verdict, cause: 'healthy' }, verdict])).toEqual([verdict])
  })

  it('is announced when an incident changes, and not when a number changes', () => {
    const verdict = { pool: 'a', cause: 'memory', incident: 'brand_new', since_s: 1, sentence: '90 %', evidence: [], affected: [], action: '', runbook: '' }
    const other = { ...verdict, pool: 'b' }
    const told = matter([verdict, other], 'memory')
    expect(matter([other, { ...verdict, since_s: 9, sentence: '91 %', evidence: ['x'] }], 'memory')).toBe(told)
    expect(matter([{ ...verdict, incident: 'kv_exhausted' }, other], 'memory')).not.toBe(told)
    expect(matter([verdict], 'memory')).not.toBe(told)
    expect(matter([], 'none')).not.toBe(matter([], 'healthy'))
  })

  it('links only to runbooks of the gateway', () => {
    expect(runbookLink('docs/operations/runbooks/engine_hang.md')).toBe('../docs/operations/runbooks/engine_hang')
    expect(runbookLink('javascript:alert(1)')).toBeNull()
    expect(runbookLink('docs/operations/runbooks/../x.md')).toBeNull()
  })

  it('separates commands from text', () => {
    expect(commandParts('Do `x y`; wait.')).toEqual([
      { text: 'Do ', command: false }, { text: 'x y', command: true }, { text: '; wait.', command: false },
    ])
    expect(commandParts('a ` b')).toEqual([{ text: 'a ` b', command: false }])
  })

  it('names the affected tenant and class', () => {
    expect(whom({ class: null, tenant: null, effect: '' })).toBe('all')
    expect(whom({ class: 'batch', tenant: 'acme', effect: '' })).toBe('tenant acme, class batch')
  })
})

describe('tables', () => {
  it('highlights whether p99 meets the target', () => {
    expect(ttftCell(CLASS).tone).toBe('good')
    expect(ttftCell({ ...CLASS, ttft_target_ms: 800 }).tone).toBe('bad')
    expect(ttftCell({ ...CLASS, ttft_target_ms: null }).tone).toBeUndefined()
    expect(ttftCell({ ...CLASS, ttft_ms: null }).text).toBe('–')
  })

  it('shows the most important state of an endpoint', () => {
    expect(endpointState({ ...ENDPOINT, leaving: true, suspected: true }).text).toBe('leaving')
    expect(endpointState({ ...ENDPOINT, suspected: true })).toEqual({ text: 'ready, suspected', tone: 'bad' })
    expect(endpointState({ ...ENDPOINT, state: 'odd' }).tone).toBe('plain')
    expect(endpointState({ ...ENDPOINT, drained: true })).toEqual({ text: 'ready, drained', tone: 'quiet' })
    expect(endpointState({ ...ENDPOINT, drained: true, suspected: true }).text).toBe('ready, suspected, drained')
    expect(endpointState({ ...ENDPOINT, probe_fails: true })).toEqual({ text: 'ready, probe fails', tone: 'bad' })
    expect(endpointState({ ...ENDPOINT, state: 'warming', probe_fails: true })).toEqual({ text: 'warming', tone: 'warn' })
  })

  it('shows when an endpoint is slower than configured', () => {
    expect([100, 60, 150, 240].map((percent) => slowness({ ...ENDPOINT, speed_percent: percent }).text)).toEqual([
      'as configured', 'faster', '1.5 × slower', '2.4 × slower',
    ])
  })

  it('highlights high usage', () => {
    expect([10, 80, 95].map(fullness)).toEqual(['good', 'warn', 'bad'])
  })

  it('shows the facts of a pool', () => {
    expect(degradation(0)).toBe('no degradation')
    const pool = { pool: 'p', level: 2, shed_percent: 12.5, demand_to_capacity_ratio: 1.5, ready: 2, warming: 1, desired: 4 }
    expect(poolFacts(pool)).toEqual(['2 ready', '1 warming', '4 desired', 'demand 150 % of capacity', 'degradation level 2 of 6', 'sheds 13 %'])
  })

  it('shows the summary values', () => {
    const found = Object.fromEntries(glance(STATE).map(([name, value]) => [name, value]))
    expect(found).toEqual({ Served: '2.5/s', Waiting: '2', Rejected: '0.5/s', Ready: '1 of 2', Degradation: '0', Cost: '–' })
  })

  it('counts all endpoints, including those that are not shown', () => {
    expect(leftOut(STATE)).toBe('')
    const large = { ...STATE, endpoints_known: 250, pools: STATE.pools.map((pool) => ({ ...pool, ready: 250 })) }
    expect(leftOut({ ...large, endpoints: Array<EndpointState>(200).fill(ENDPOINT) })).toMatch(/^and 50 more/)
    expect(glance(large).find(([name]) => name === 'Ready')).toEqual(['Ready', '250 of 250', 'plain'])
  })

  it('does not highlight cancelled requests', () => {
    const rejection = { outcome: 'shed', per_min: 3, total: 3, unsuccessful: true }
    const tones = [rejection, { ...rejection, outcome: 'cancelled', unsuccessful: false }, { ...rejection, per_min: 0 }].map(rejectionTone)
    expect(tones).toEqual(['bad', 'plain', 'quiet'])
  })

  it('shows the gateway and its scheduler', () => {
    expect(about(STATE)).toBe('g:8080 · version 1.2 · up 2 hours · configuration 01234567')
    const cell = { mode: 'following', is_leader: false, scheduler: { name: 'g2', admin: '' } }
    expect(about({ ...STATE, gateway: { ...STATE.gateway, draining: true, cell } })).toContain('scheduled by g2 · draining')
  })
})

describe('the scheduler of a cell', () => {
  it('is linked if it is another member with a known address', () => {
    const at = (admin: string, leader = false) =>
      schedulerLink({ ...STATE, gateway: { ...STATE.gateway, cell: { mode: 'following', is_leader: leader, scheduler: { name: 'g2', admin } } } })
    expect(at('10.0.0.2:9090')).toBe('http://10.0.0.2:9090/console/')
    expect([at(''), at('x"onclick=', false), at('10.0.0.2:9090', true), schedulerLink(STATE)]).toEqual([null, null, null, null])
  })
})

describe('recent requests', () => {
  it('show the stages end to end', () => {
    expect(slices(REQUEST.stages)).toEqual([
      { stage: 'queue', left: 0, width: 75, over: true },
      { stage: 'decode', left: 75, width: 25, over: false },
    ])
    expect(slices([])).toEqual([])
  })

  it('name the longest stage', () => {
    expect(summary(REQUEST)).toBe('most in queue; over budget: queue')
    expect(isOver({ stage: 'auth', ms: 1, budget_ms: null })).toBe(false)
  })

  it('have bars of comparable length', () => {
    expect([barLength(50, 200), barLength(0.1, 200), barLength(0, 0)]).toEqual([25, 2, 2])
  })

  it('offer a command only for ids without shell syntax', () => {
    expect(explainCommand('req_12')).toBe('headgate explain req_12')
    expect(explainCommand('x; rm -rf /')).toBe('')
  })
})

describe('the connection', () => {
  it('shows the age of the data', () => {
    expect(linkText('live', 10)).toBe('live')
    expect(linkText('connecting', null)).toBe('connecting')
    expect(linkText('reconnecting', 5400)).toBe('reconnecting: last seen 5 s ago')
  })
})
