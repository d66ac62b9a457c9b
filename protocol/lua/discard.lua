-- Drops a message that waits, on purpose.
-- ARGV: room, message id, request, how long it is remembered, in seconds
-- Answers: {'discarded'} | {'processing', the signal that ends it, if there was one} (a cycle runs on it) | {'unknown'}
-- Events: message.discarded
local room, id, request = ARGV[1], ARGV[2], ARGV[3]
local request_key = G .. ':seen:' .. request
local before = call('GET', request_key)
if before then return { before, '' } end

local h = load(room)
if h.cycle and h.processing == id then return { 'processing', h.abort or h.deferred or '' } end
if #call('XRANGE', messages_key(room), id, id) == 0 then return { 'unknown', '' } end
if h.processing == id then
  end_message(h, id)
  unready(h) -- whoever waited out its retry time need not: the room gets a new entry, if it has more work
else call('XDEL', messages_key(room), id) end
output(room, 'discarded', id, '0', 0, '')
event('message.discarded', 'room', room, 'message', id)
if not h.cycle then park(h) end
save(h)
call('SET', request_key, 'discarded', 'EX', ARGV[4])
return { 'discarded', '' }
