-- Registers a relay, and takes, renews or ends its lease: one of its processes hands over, the others stand by.
-- ARGV: relay, token of the process, lease ms ('' to end the lease)
-- Answers: {'ok', when the relay was registered} | {'taken', the token that has the lease}
-- Events: relay.registered, relay.joined, relay.left
local name, token, lease = ARGV[1], ARGV[2], ARGV[3]
local key = lease_key(name)
local holder = call('GET', key)

if lease == '' then
  if holder == token then
    call('DEL', key)
    call('HSET', RELAYS_SEEN, name, now)
    event('relay.left', 'relay', name, 'token', token)
  end
  return { 'ok', '' }
end
if call('HSETNX', RELAYS, name, now) == 1 then event('relay.registered', 'relay', name) end
if holder and holder ~= token then return { 'taken', holder } end
call('SET', key, token, 'PX', lease)
call('HSET', RELAYS_SEEN, name, now)
if not holder then event('relay.joined', 'relay', name, 'token', token) end
return { 'ok', call('HGET', RELAYS, name) }
