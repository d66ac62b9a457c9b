-- Joins (incarnation '') or renews a worker's lease.
-- ARGV: worker, incarnation or '', lease ms, instance id to use if the agent has none, field, value, …
-- Answers: {'ok' | 'lapsed' (the lease had run out: others may own its rooms), incarnation, the agent's instance id} |
-- {'superseded', the newer incarnation}
-- Events: worker.joined, worker.lapsed
local worker, incarnation, lease = ARGV[1], ARGV[2], ARGV[3]
local key = G .. ':worker:' .. worker
local current = call('HGET', key, 'incarnation')
local status = 'ok'

call('HSETNX', G, 'instance', ARGV[4])
call('HSETNX', G, 'version', '1')
if incarnation == '' then
  incarnation = string.format('%d', tick())
  if call('EXISTS', READY) == 0 or #call('XINFO', 'GROUPS', READY) == 0 then
    call('XGROUP', 'CREATE', READY, GROUP, '0', 'MKSTREAM')
  end
  call('DEL', key)
  event('worker.joined', 'worker', worker, 'incarnation', incarnation)
elseif current and tonumber(current) > tonumber(incarnation) then return { 'superseded', current }
elseif not current then
  status = 'lapsed'
  event('worker.lapsed', 'worker', worker, 'incarnation', incarnation)
end
call('HSET', key, 'incarnation', incarnation, 'beat', now, unpack(ARGV, 5))
call('PEXPIRE', key, lease)
call('SADD', G .. ':workers', worker)
return { status, incarnation, call('HGET', G, 'instance') }
