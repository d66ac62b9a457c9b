-- Puts a dead letter back at the tail of its room's queue, as a new message with a fresh budget.
-- ARGV: dead letter's entry id, request, how long it is remembered, in seconds
-- Answers: {'ok', room, new message id} | {'unknown'} | {'newer', its version} (written by a newer greenroom: left as it is)
-- Events: message.requeued
local entry_id, request = ARGV[1], ARGV[2]
local request_key = G .. ':seen:' .. request
local before = call('GET', request_key)
if before then
  local id, room = before:match('^(%S+) (.*)$')
  return { 'ok', room, id }
end
local entry = call('XRANGE', G .. ':dead', entry_id, entry_id)[1]
if not entry then return { 'unknown', '' } end
if too_new(version_of(entry[2]), VERSION) then return { 'newer', version_of(entry[2]) } end

local fields = {}
for i = 1, #entry[2], 2 do fields[entry[2][i]] = entry[2][i + 1] end
local room = fields.room
if not room then return { 'unknown', '' } end -- written by hand
local h = load(room) -- before anything is written: if it cannot be read, the dead letter stays
local id = string.format('%d-0', tick())
call('XADD', messages_key(room), id, 'v', fields.v or '1', 'at', now, 'body', fields.body or '')
call('XDEL', G .. ':dead', entry_id)
event('message.requeued', 'room', room, 'message', id, 'dead', fields.message or '')
if not h.ready and not h.cycle then park(h) end
save(h)
call('SET', request_key, id .. ' ' .. room, 'EX', ARGV[3])
return { 'ok', room, id }
