-- Appends a message to a room's queue and makes the room ready, or held.
-- ARGV: room, dedup key, its life in seconds, queue limit, body
-- Answers: {'ok', id, ms} | {'full', length} | {'conflict', the room that the key belongs to}
-- Events: none. `ms` is the server's time: no output of this message is older.
local room, key, ttl, limit, body = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local seen_key = G .. ':seen:' .. key

local seen = call('GET', seen_key)
if seen then
  local id, ms, of = seen:match('^(%S+) (%S+) (.*)$')
  if of ~= room then return { 'conflict', of } end
  return { 'ok', id, ms }
end
local length = call('XLEN', messages_key(room))
if length >= limit then return { 'full', length } end

local h = load(room) -- before anything is written: a room that cannot be read is refused, and has no message more
local id = string.format('%d-0', tick())
call('XADD', messages_key(room), id, 'v', VERSION, 'at', now, 'body', body)
call('SET', seen_key, id .. ' ' .. string.format('%d', now_ms) .. ' ' .. room, 'EX', ttl)
if not h.ready and not h.cycle then park(h) end
save(h)
return { 'ok', id, string.format('%d', now_ms) }
