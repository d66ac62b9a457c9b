-- Forgets a relay that is gone for good: what it has not handed over is kept no longer than it would be without it.
-- ARGV: relay, request, how long it is remembered, in seconds, where to go on (what 'more' said, or 0)
-- Answers: {'ok'} | {'more', where to go on} (ask again: it has more rooms) | {'runs', the token that has the lease} | {'unknown'}
-- Events: relay.forgotten
local name, request, cursor = ARGV[1], ARGV[2], ARGV[4] or '0'
local request_key = G .. ':seen:' .. request
local ROOMS_MOST = 500 -- in one call: other clients wait for it
local undelivered = undelivered_key(name)

if not call('GET', request_key) then
  local holder = call('GET', lease_key(name))
  if holder then return { 'runs', holder } end
  if call('HDEL', RELAYS, name) + call('EXISTS', undelivered) == 0 then return { 'unknown', '' } end
  call('HDEL', RELAYS_SEEN, name)
  call('SET', request_key, 'ok', 'EX', ARGV[3])
  event('relay.forgotten', 'relay', name)
end
if call('HEXISTS', RELAYS, name) == 1 then return { 'ok', '' } end -- it has come back meanwhile
-- Not from the beginning each time: that part of the hash is empty by then, and a call looks through so much of it only.
local scanned = call('HSCAN', undelivered, cursor, 'COUNT', ROOMS_MOST)
local found = scanned[2]
for i = 1, #found, 2 do let_go(name, found[i]) end
if call('EXISTS', undelivered) == 1 then return { 'more', scanned[1] } end
return { 'ok', '' }
