-- Ends a worker's lease at once, so that others need not wait for it to run out.
-- ARGV: worker, incarnation
-- Answers: {'ok'} | {'superseded'} (the lease is a newer incarnation's: untouched)
-- Events: worker.left
local worker, incarnation = ARGV[1], ARGV[2]
local key = G .. ':worker:' .. worker
local current = call('HGET', key, 'incarnation')
if current and current ~= incarnation then return { 'superseded', current } end
call('DEL', key)
if #call('XPENDING', READY, GROUP, '-', '+', 1, worker) == 0 then
  call('XGROUP', 'DELCONSUMER', READY, GROUP, worker)
  call('SREM', G .. ':workers', worker)
end
event('worker.left', 'worker', worker, 'incarnation', incarnation)
return { 'ok', '' }
