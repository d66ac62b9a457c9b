-- Joins (incarnation '') or renews a worker's lease.
-- ARGV: worker, incarnation or '', lease ms, the agent's instance id (to join: the one to use if it has none), field, value, …
-- Answers: {'ok' | 'lapsed' (the lease had run out: others may own its rooms), incarnation, the agent's instance id, now in ms} |
-- {'superseded', the newer incarnation} | {'emptied', incarnation} (not the data that this worker joined: nothing is written,
-- for its incarnation says nothing beside those of a clock that began anew) | {'newer', the version of the agent's data}
-- (written by a newer greenroom: nothing is written)
-- Events: worker.joined, worker.lapsed
local worker, incarnation, lease = ARGV[1], ARGV[2], ARGV[3]
local key = G .. ':worker:' .. worker
local status = 'ok'

local version = call('HGET', G, 'version') or LAYOUT
if too_new(version, LAYOUT) then return { 'newer', version } end
if call('TYPE', key).ok ~= 'hash' then call('DEL', key) end -- nothing, or what no script wrote
local current = whole(call('HGET', key, 'incarnation'))

if incarnation ~= '' and call('HGET', G, 'instance') ~= ARGV[4] then return { 'emptied', incarnation } end
call('HSETNX', G, 'instance', ARGV[4])
call('HSETNX', G, 'version', LAYOUT)
if incarnation == '' then
  incarnation = string.format('%d', tick())
  if call('EXISTS', READY) == 0 or #call('XINFO', 'GROUPS', READY) == 0 then
    call('XGROUP', 'CREATE', READY, GROUP, '0', 'MKSTREAM')
  end
  call('DEL', key)
  event('worker.joined', 'worker', worker, 'incarnation', incarnation)
elseif current and current > tonumber(incarnation) then return { 'superseded', string.format('%.0f', current) }
elseif not current then
  status = 'lapsed'
  event('worker.lapsed', 'worker', worker, 'incarnation', incarnation)
end
call('HSET', key, 'incarnation', incarnation, 'beat', now, unpack(ARGV, 5))
call('PEXPIRE', key, lease)
call('SADD', G .. ':workers', worker)
return { status, incarnation, call('HGET', G, 'instance'), string.format('%d', now_ms) }
