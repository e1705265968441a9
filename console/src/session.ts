// The session of an operator who has logged in.

export interface Session {
  name: string
  csrf: string
}

export function parseSession(text: string): Session | null {
  try {
    const { name, csrf } = JSON.parse(text) as Partial<Session>
    return typeof name === 'string' && typeof csrf === 'string' ? { name, csrf } : null
  } catch {
    return null
  }
}

/** Requests that change something repeat the CSRF token, which other sites cannot read. */
export function logoutRequest(session: Session): RequestInit {
  return { method: 'POST', headers: { 'x-headgate-csrf': session.csrf } }
}
