// The state that the gateway sends once a second. It matches src/headgate/telemetry/live/live_state.py.

export interface Quantiles {
  p50: number
  p95: number
  p99: number
}

export interface Affected {
  class: string | null
  tenant: string | null
  effect: string
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
  arrived_per_s: number
  completed_per_s: number
  rejected_per_s: number
  ttft_ms: Quantiles | null
  duration_ms: Quantiles | null
  ttft_target_ms: number | null
  goodput_percent: number | null
}

export interface TenantState {
  tenant: string
  queued: number
  in_flight: number
  arrived_per_s: number
  usd_per_hour: number | null
}

export interface PoolState {
  pool: string
  level: number
  shed_percent: number
  demand_to_capacity_ratio: number | null
  ready: number
  warming: number
  desired: number | null
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
  /** True if an operator's override keeps new requests away from it. */
  drained: boolean
  probe_fails: boolean
}

export interface Rejection {
  outcome: string
  per_min: number
  total: number
  /** True for rejected and failed requests, false for those that the client cancelled. */
  unsuccessful: boolean
}

export interface LatencyPoint {
  t: number
  class: string
  ttft_p50_ms: number | null
  ttft_p99_ms: number | null
  queued: number
  arrived_per_s: number
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
  is_leader: boolean
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
  /** Endpoints with problems first. A large fleet is truncated. */
  endpoints: EndpointState[]
  endpoints_known: number
  rejections: Rejection[]
  latency_points: LatencyPoint[]
  recent: RecentRequest[]
  degradation_level: number
}

export interface History {
  version: 1
  points: LatencyPoint[]
}

/** Returns null for another version of the format, because its fields could mean something else. */
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
