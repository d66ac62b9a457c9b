-- Ends a worker's lease at once, so that others need not wait for it to run out. What it still owns without a live cycle
-- (entries whose delivery it never saw) is given back; a cycle that is still marked live is left to adopt.
-- ARGV: worker, incarnation
-- Answers: {'ok'} | {'superseded'} (the lease is a newer incarnation's: untouched)
-- Events: worker.left, of one that had its lease
local worker, incarnation = ARGV[1], ARGV[2]
local key = G .. ':worker:' .. worker
local current = call('HGET', key, 'incarnation')
if current and current ~= incarnation then return { 'superseded', current } end
local had_lease = call('DEL', key) == 1 -- not if this is sent again: the event is of the first time

local function put_back(ready, entry)
  local h = entry and load(entry[2][2])
  if h and h.ready == ready and not h.cycle then
    unready(h)
    park(h)
    save(h)
  elseif not h or h.ready ~= ready then
    call('XACK', READY, GROUP, ready)
    call('XDEL', READY, ready)
  end
end

for _, row in ipairs(call('XPENDING', READY, GROUP, '-', '+', 10000, worker)) do
  local entry = call('XRANGE', READY, row[1], row[1])[1]
  safely(entry and entry[2][2] or '', put_back, row[1], entry)
end
if #call('XPENDING', READY, GROUP, '-', '+', 1, worker) == 0 then
  call('XGROUP', 'DELCONSUMER', READY, GROUP, worker)
  call('SREM', G .. ':workers', worker)
end
if had_lease then event('worker.left', 'worker', worker, 'incarnation', incarnation) end
return { 'ok', '' }
