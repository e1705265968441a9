// What does the gateway tell, once a second? The twin of src/headgate/telemetry/live/state.py.

export interface Quantiles {
  p50: number
  p95: number
  p99: number
}

export interface Affected {
  class: string | null
  tenant: string | null
  how: string
}

export interface Verdict {
  pool: string | null
  cause: string
  incident: string
  since_s: number
  sentence: string
  evidence: string[]
  affected: Affected[]
  action: string
  runbook: string
}

export interface ClassState {
  class: string
  queued: number
  per_s: number
  completed_per_s: number
  refused_per_s: number
  ttft_ms: Quantiles | null
  duration_ms: Quantiles | null
  ttft_target_ms: number | null
  goodput_percent: number | null
}

export interface TenantState {
  tenant: string
  queued: number
  in_flight: number
  per_s: number
  usd_per_hour: number | null
}

export interface PoolState {
  pool: string
  level: number
  shed_percent: number
  demand_over_capacity: number | null
  ready: number
  warming: number
  wanted: number | null
}

export interface EndpointState {
  id: string
  pool: string
  state: string
  in_flight: number
  in_flight_max: number
  kv_percent: number | null
  running: number | null
  waiting: number | null
  speed_percent: number
  suspected: boolean
  leaving: boolean
  /** Whether an operator has ordered that it gets no new requests. */
  drained: boolean
  probe_fails: boolean
}

export interface Refusal {
  outcome: string
  per_min: number
  total: number
  /** Refused or failed; whoever left by itself was not. */
  unserved: boolean
}

export interface TailPoint {
  t: number
  class: string
  ttft_p50_ms: number | null
  ttft_p99_ms: number | null
  queued: number
  per_s: number
}

export interface StageTime {
  stage: string
  ms: number
  budget_ms: number | null
}

export interface RecentRequest {
  request_id: string
  tenant: string | null
  class: string | null
  outcome: string
  at: string
  total_ms: number
  stages: StageTime[]
}

export interface CellState {
  mode: string
  leads: boolean
  scheduler: { name: string; admin: string } | null
}

export interface State {
  version: 1
  at: string
  gateway: {
    name: string
    version: string
    uptime_s: number
    config_hash: string
    draining: boolean
    cell: CellState | null
  }
  verdicts: Verdict[]
  classes: ClassState[]
  tenants: TenantState[]
  pools: PoolState[]
  /** The worst first, and not all of a large fleet. */
  endpoints: EndpointState[]
  endpoints_known: number
  refusals: Refusal[]
  tails: TailPoint[]
  recent: RecentRequest[]
  ladder: number
}

export interface History {
  version: 1
  points: TailPoint[]
}

/** What another version of the gateway tells is not shown: it could mean something else. */
export function parseState(text: string): State | null {
  return parse(text) as State | null
}

export function parseHistory(text: string): History | null {
  return parse(text) as History | null
}

function parse(text: string): { version: number } | null {
  try {
    const told: unknown = JSON.parse(text)
    return typeof told === 'object' && told !== null && 'version' in told && told.version === 1 ? { ...told, version: 1 } : null
  } catch {
    return null
  }
}
