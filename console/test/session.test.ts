import { expect, test } from 'vitest'

import { logoutRequest, parseSession } from '../src/session'

test('a session has a name and a CSRF token', () => {
  expect(parseSession('{"name":"corp:alice","csrf":"t"}')).toEqual({ name: 'corp:alice', csrf: 't' })
})

test.each(['', '{', '{}', '[]', '{"name":"a"}', '{"name":1,"csrf":"t"}'])('%s is not a session', (text) => {
  expect(parseSession(text)).toBeNull()
})

test('the logout repeats the CSRF token', () => {
  expect(logoutRequest({ name: 'a', csrf: 't' })).toEqual({ method: 'POST', headers: { 'x-headgate-csrf': 't' } })
})
